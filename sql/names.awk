# names.awk: for the enums and constants of the headers (and enums in comments of SQL) that it is given, a sed script
# that puts numbers in place of names: DelayedKind.expiry becomes 5, job_flag.job_pending becomes 1,
# constant.wait_bounds {10000,50000,…}.
# A name that is not there ends sed with an error.
/^constexpr int64 [a-z_]+(\[.*\])? =/, /;$/ {
    gsub(/constexpr int64 |[ ;]/, "")
    text = text $0
    if (!/}?$/ || /,$/)
        next
    split(text, sides, "=")
    sub(/\[.*/, "", sides[1])
    if (sub(/\*USECS_PER_SEC$/, "", sides[2]))
        sides[2] = sprintf("%d", sides[2] * 1000000)
    if (sides[2] ~ /^({[0-9,]+}|[0-9]+)$/)
        rule[++rules] = sprintf("s/constant\\.%s\\>/%s/g", sides[1], sides[2])
    text = ""
    next
}
{
    line = $0
    sub(/^-- /, "", line)
    if (line ~ /^enum /) {
        name = line
        sub(/^enum (class )?/, "", name)
        sub(/[^A-Za-z_].*/, "", name)
        sub(/^[^{]*/, "", line)
        value = -1
    }
    if (name == "")
        next
    gsub(/\/\*.*(\*\/|$)/, "", line)
    ends = line ~ /}/
    gsub(/[{}; ]/, "", line)
    n = split(line, parts, ",")
    for (i = 1; i <= n; i++) {
        split(parts[i], sides, "=")
        if (sides[1] !~ /^[a-z_]+$/ || sides[2] !~ /^(-?[0-9]+(<<[0-9]+)?)?$/)
            continue
        if (sides[2] == "")
            value++
        else {
            split(sides[2], shift, "<<")
            value = shift[1] * 2 ^ shift[2]
        }
        rule[++rules] = sprintf("s/%s\\.%s\\>/%d/g", name, sides[1], value)
    }
    if (ends) {
        names = names (names == "" ? "" : "\\|") name
        name = ""
    }
}
END {
    for (i = 1; i <= rules; i++)
        print rule[i]
    printf "/\\<\\(constant\\|%s\\)\\.[a-z]/{\ns/^/no such name: /w /dev/stderr\nq1\n}\n", names
}
