/*
 * rate_limit.cpp: what sql/limits.sql needs to read rate limits as claims do.
 */
#include "ojs/pg/args.h"
#include "ojs/pg/guard.h"
#include "ojs/job/limit_policy.h"

using namespace ojs;

namespace
{

Datum
period_datum(int64 us)
{
    auto *period = static_cast<Interval *>(palloc0(sizeof(Interval)));
    period->time = us;
    return IntervalPGetDatum(period);
}

} // namespace

/* ojs_store.check_limit(key text, config jsonb) returns void: as an administrator sets it */
OJS_FUNCTION(ojs_check_limit)
{
    if (PG_ARGISNULL(0))
        raise_field(Code::invalid_payload, "key", "Name the key of a rate limit.", "key must not be null");
    check_limit_key(view(PG_GETARG_TEXT_PP(0)), "key");
    Jsonb *config = jsonb_or_null(fcinfo, 1);
    if (config != nullptr && is_object(config)) {
        check_limit_members(root_of(config));
        check_periods(read_limit(root_of(config)));
    }
    PG_RETURN_VOID();
}

/* ojs_store.limit_numbers(config jsonb, over jsonb) returns record */
OJS_FUNCTION(ojs_limit_numbers)
{
    LimitPolicy policy = no_limit;
    for (int i = 0; i < 2; i++) {
        Jsonb *config = jsonb_or_null(fcinfo, i);
        if (config == nullptr)
            continue;
        if (!is_object(config))
            raise_field(Code::invalid_payload, "config", "Give an object such as {\"concurrency\": 5}.",
                        "config must be an object, not %s", kind_of(config));
        policy = read_limit(root_of(config), policy);
    }

    TupleDesc desc;
    if (get_call_result_type(fcinfo, nullptr, &desc) != TYPEFUNC_COMPOSITE)
        elog(ERROR, "return type must be a row type");
    bool no_rate = policy.rate.period_us == 0;
    bool no_throttle = policy.throttle.period_us == 0;
    Datum values[] = {Int32GetDatum(policy.concurrency), Int32GetDatum(policy.rate.limit),
                      period_datum(policy.rate.period_us), Int32GetDatum(policy.throttle.limit),
                      period_datum(policy.throttle.period_us)};
    bool nulls[] = {policy.concurrency < 0, no_rate, no_rate, no_throttle, no_throttle};
    return HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), values, nulls));
}
