# Builds, installs and tests ojs. `make help` lists the targets; docs/develop.md explains them.

EXTENSION = ojs ojs_test
EXTVERSION := $(shell sed -n "s/^default_version *= *'\(.*\)'/\1/p" ojs.control)
PG_CONFIG ?= pg_config

# The install script is these files, in this order.
# Tables and types: run once. A later version changes them in sql/versions/next.sql.
SQL_ONCE = sql/schema.sql sql/roles.sql sql/types.sql sql/tables.sql sql/ordering_tables.sql sql/admin_tables.sql
# Functions, views, triggers: part of every update script too, there with "or replace".
SQL_CODE = \
	sql/rights.sql \
	sql/tenants.sql \
	sql/push.sql \
	sql/claim.sql \
	sql/ack.sql \
	sql/fail.sql \
	sql/lease.sql \
	sql/progress.sql \
	sql/checkpoint.sql \
	sql/work.sql \
	sql/control.sql \
	sql/info.sql \
	sql/admin.sql \
	sql/lease_log.sql \
	sql/metrics.sql \
	sql/queue.sql \
	sql/deduplication.sql \
	sql/queue_stats.sql \
	sql/explain.sql \
	sql/limits.sql \
	sql/ordering.sql \
	sql/maintenance.sql \
	sql/events.sql \
	sql/event_stream.sql \
	sql/workflow.sql \
	sql/workflow_extend.sql \
	sql/workflow_read.sql sql/workflow_retention.sql \
	sql/results.sql \
	sql/lineage.sql \
	sql/once.sql \
	sql/lists.sql \
	sql/bulk.sql \
	sql/replay.sql \
	sql/audit.sql \
	sql/hooks.sql \
	sql/pools.sql \
	sql/tenant_settings.sql \
	sql/schemas.sql \
	sql/lease_json.sql \
	sql/tick.sql \
	sql/aging.sql \
	sql/cron.sql \
	sql/webhooks.sql \
	sql/webhook_deliveries.sql \
	sql/rebuild.sql \
	sql/worker.sql \
	sql/workers.sql \
	sql/canonical.sql \
	sql/envelope.sql \
	sql/manifest.sql \
	sql/node.sql \
	sql/reset.sql \
	sql/http/node.sql \
	sql/http/read.sql \
	sql/http/errors.sql \
	sql/http/serve.sql \
	sql/http/jobs.sql \
	sql/http/batches.sql \
	sql/http/bulk.sql \
	sql/http/work.sql \
	sql/http/workers.sql \
	sql/http/reports.sql \
	sql/http/queues.sql \
	sql/http/topics.sql \
	sql/http/cron.sql \
	sql/http/workflows.sql \
	sql/http/schemas.sql \
	sql/http/pools.sql \
	sql/http/tenants.sql \
	sql/http/webhooks.sql \
	sql/http/admin.sql \
	sql/http/system.sql \
	sql/http/server.sql
# What speaks of all of the above: always last, and in every update script.
SQL_LAST = sql/grants.sql sql/http/grants.sql sql/dump.sql

# Frozen scripts of earlier versions are installed as they are, and the newest of them can be updated to this one.
FROZEN = $(wildcard sql/versions/ojs--*.sql)
PREVIOUS := $(lastword $(shell ls sql/versions 2>/dev/null | sed -n 's/^ojs--\([^-]*\)\.sql$$/\1/p' | \
	grep -Fvx '$(EXTVERSION)' | sort -V))
INSTALL_SCRIPT_SQL = sql/ojs--$(EXTVERSION).sql
UPDATE_SCRIPT_SQL = $(if $(PREVIOUS),sql/ojs--$(PREVIOUS)--$(EXTVERSION).sql)
DATA_built = $(INSTALL_SCRIPT_SQL) $(UPDATE_SCRIPT_SQL)
DATA = $(filter-out $(DATA_built:sql/%=sql/versions/%),$(FROZEN)) $(wildcard sql/test_kit/*.sql)

MODULE_big = ojs
OBJS = $(patsubst %.cpp,%.o,$(sort $(wildcard src/*.cpp src/*/*.cpp)))
EXTRA_CLEAN = $(wildcard sql/ojs--*.sql) $(OBJS:.o=.d) build

PG_CPPFLAGS = -Iinclude -DOJS_VERSION='"$(EXTVERSION)"'
PG_CXXFLAGS = -std=c++20 -fno-rtti -fno-threadsafe-statics -fvisibility=hidden -fvisibility-inlines-hidden \
	-Wall -Wextra -MMD -MP $(if $(filter true,$(CI)),-Werror -Wshadow=compatible-local)
SHLIB_LINK = -lcrypto -lstdc++

# `make installcheck` needs a running server that has ojs installed (and pgTAP, or its part is left out). pg_regress
# looks for sql, specs and expected in one folder.
REGRESS_PREP = build/pg_regress
REGRESS = api
REGRESS_OPTS = --inputdir=build/pg_regress
ISOLATION = $(patsubst test/specs/%.spec,%,$(sort $(wildcard test/specs/*.spec)))
ISOLATION_OPTS = --inputdir=build/pg_regress --load-extension=ojs
PGTAP = $(sort $(wildcard test/pgtap/*.sql))
PROVE_TESTS = $(sort $(wildcard test/tap/*.pl))

# Bitcode for JIT inlining brings nothing to functions that work on tables, and asks for a second compiler.
override with_llvm = no
PGXS := $(shell $(PG_CONFIG) --pgxs 2>/dev/null)

# TAP tests start servers, which root cannot, with Perl modules that come with PostgreSQL from 15 on, and IPC::Run.
TAP_TESTS := $(if $(wildcard $(PGXS:/makefiles/pgxs.mk=/test/perl/PostgreSQL/Test/Cluster.pm)),\
	$(shell [ "$$(id -u)" -ne 0 ] && perl -MIPC::Run -e 'print 1' 2>/dev/null))
ifeq ($(strip $(TAP_TESTS)),)
undefine TAP_TESTS
endif
ifeq ($(ISOLATION),)
undefine ISOLATION
endif

ifneq ($(wildcard $(PGXS)),)
include $(PGXS)
PG_PROVE_FLAGS += -I $(CURDIR)/test/tap

# Server headers are not ours to warn about.
server_headers := $(shell $(PG_CONFIG) --includedir-server)
override CPPFLAGS := $(patsubst -I$(server_headers),-isystem $(server_headers),$(CPPFLAGS))

# Most of the time of a compilation goes into the server's headers, so g++ reads them once for all files.
ifneq ($(findstring Free Software Foundation,$(shell $(CXX) --version)),)
PRELUDE = build/prelude.h.gch
$(PRELUDE): include/ojs/pg/pg.h build/flags
	echo '#include "ojs/pg/pg.h"' > build/prelude.h
	$(CXX) $(CXXFLAGS) $(CPPFLAGS) -x c++-header -o $@ build/prelude.h
$(OBJS): private override CPPFLAGS += -include build/prelude.h
endif

# Every change of a header, of the server's version or of the flags rebuilds what depends on it, without make clean.
$(OBJS): build/flags $(PRELUDE)
# What CI asks for besides is warnings, which change no object.
BUILT_WITH := $(shell $(PG_CONFIG) --version) ojs $(EXTVERSION) $(CXX) $(filter-out -Werror -Wshadow=%,$(PG_CXXFLAGS)) \
	$(CFLAGS) $(COPT) $(PROFILE)
build/flags: FORCE
	@mkdir -p build; echo '$(BUILT_WITH)' | cmp -s - $@ || echo '$(BUILT_WITH)' > $@
-include $(OBJS:.o=.d)

installcheck: installcheck-pgtap

# The extension ojs_router, SQL alone, goes with it.
install: install-router
uninstall: uninstall-router
clean: clean-router
install-router uninstall-router clean-router: %-router: FORCE
	@$(MAKE) --no-print-directory -C router $* PG_CONFIG='$(PG_CONFIG)'
else
all install installcheck:
	@echo 'ojs is built with the server headers of PostgreSQL, and "$(PG_CONFIG)" does not lead to them.'
	@echo 'Install them (scripts/install-deps does it on Debian and Ubuntu), or say make PG_CONFIG=/path/to/pg_config.'
	@exit 1
endif

# $(call assemble,SQL command that runs the script,files,sed script for the files)
assemble = { printf '%s\n' '\echo Use "$(1)" to load this file. \quit' \
	'set local search_path = pg_catalog, pg_temp;'; \
	for part in $(2); do printf '\n-- %s\n\n' "$$part"; sed -f build/sql-names.sed -e '$(3)' "$$part" || exit 1; done; \
	} > $@.tmp && mv $@.tmp $@

# In SQL, DelayedKind.expiry stands for the number that this name has in C++.
NAMED_IN = $(addprefix include/ojs/,store/rows.h state/lease_log.h state/client_workers.h counters/metric_table.h \
	limits/held_position.h) \
	src/hot_set/rebuild.cpp sql/events.sql
build/sql-names.sed: sql/names.awk $(NAMED_IN) build/flags
	awk -f $< $(NAMED_IN) > $@

$(INSTALL_SCRIPT_SQL): build/sql-names.sed $(SQL_ONCE) $(SQL_CODE) $(SQL_LAST) ojs.control Makefile
	$(call assemble,create extension ojs,$(SQL_ONCE) $(SQL_CODE) $(SQL_LAST))

ifneq ($(PREVIOUS),)
$(UPDATE_SCRIPT_SQL): build/sql-names.sed sql/update.awk sql/versions/locks.sql sql/versions/next.sql $(SQL_CODE) \
		$(SQL_LAST) ojs.control Makefile
	$(call assemble,alter extension ojs update to '\''$(EXTVERSION)'\'',\
		sql/versions/next.sql $(SQL_CODE) $(SQL_LAST),s/^create \(function\|view\|trigger\)/create or replace \1/)
	awk -v PREVIOUS=sql/versions/ojs--$(PREVIOUS).sql -v LOCKS=sql/versions/locks.sql -f sql/update.awk $@ \
		> $@.tmp && mv $@.tmp $@
endif

build/pg_regress:
	mkdir -p $@
	ln -sfn ../../test/regress $@/sql
	ln -sfn ../../test/specs $@/specs
	ln -sfn ../../expected $@/expected

FORCE:
.PHONY: FORCE help quickstart quickstart-cluster dev test test-one conformance lint format \
	gateway bench torture freeze deb dist installcheck-pgtap list-sql

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' Makefile | awk -F'\t' '{ printf "  make %-18s %s\n", $$1, $$2 }'
	@echo '  make, make install, make installcheck work as for any PGXS extension'

quickstart: ## watch real jobs being done in a throwaway server (DIR=folder FILES=number WORKERS=number HTTP=port)
	@quickstart/run $(if $(DIR),--dir '$(DIR)') $(if $(FILES),--files $(FILES)) \
		$(if $(WORKERS),--workers $(WORKERS)) $(if $(HTTP),--http $(HTTP))

quickstart-cluster: ## watch three servers, and then four, work as one queue (JOBS=number WORKERS=number)
	@quickstart/cluster $(if $(JOBS),--jobs $(JOBS)) $(if $(WORKERS),--workers $(WORKERS))

dev: ## build, start a throwaway server with the extension, open psql
	@test/cluster run --preload -- psql

test: ## run every test in throwaway servers (T="pgtap claim" for some of them)
	@test/run $(T)

test-one: ## run the tests of one name: T=claim, REPEAT=20
	@test/run $(or $(T),$(error say which: make test-one T=claim))

conformance: ## run the cases of the Open Job Spec (OJS_CONFORMANCE=folder with its runner)
	@test/run conformance

lint: ## check layers, symbols, settings, SQL parts and versions
	@test/run lint

format: ## lay out C++ with clang-format 14, and paragraphs of Markdown
	@scripts/format

gateway: ## build the HTTP server build/ojs-gateway (docs/how-to/gateway.md)
	@scripts/install-deps gateway
	@$(MAKE) --no-print-directory build/ojs-gateway

# One object for each file, so that the parser of HTTP, which is slow to compile, is compiled when it changes. Other
# flags (GATEWAY_FLAGS="-fsanitize=address,undefined") need another folder (GATEWAY_DIR).
GATEWAY_DIR ?= build/gateway
GATEWAY_OBJS = $(patsubst gateway/%.cpp,$(GATEWAY_DIR)/%.o,$(wildcard gateway/*.cpp)) $(GATEWAY_DIR)/page_files.o
GATEWAY_CXXFLAGS = -std=c++20 -O2 -g -Wall -Wextra $(if $(filter true,$(CI)),-Werror) -MMD -MP -fPIE \
	-fstack-protector-strong -fstack-clash-protection -D_GLIBCXX_ASSERTIONS -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2 \
	-isystem $(shell $(PG_CONFIG) --includedir)
GATEWAY_LDFLAGS = -pie -Wl,-z,relro,-z,now,-z,noexecstack,--as-needed -L$(shell $(PG_CONFIG) --libdir)

$(GATEWAY_DIR)/%.o: gateway/%.cpp
	@mkdir -p $(@D)
	$(CXX) $(GATEWAY_CXXFLAGS) $(GATEWAY_FLAGS) -c -o $@ $<

# The page is built in as it stands in gateway/page: as string literals.
PAGE_FILES = $(wildcard gateway/page/*)
$(GATEWAY_DIR)/page_files.cpp: $(PAGE_FILES) gateway/page_files.h
	@mkdir -p $(@D)
	@{ echo '#include "page_files.h"'; echo 'namespace gateway { static constexpr PageFile files[] = {'; \
	for file in $(PAGE_FILES); do printf '{"%s", R"page_file(' "$${file##*/}"; cat "$$file"; echo ')page_file"},'; done; \
	echo '}; const std::span<const PageFile> page_files(files); }'; } > $@.tmp && mv $@.tmp $@

$(GATEWAY_DIR)/page_files.o: $(GATEWAY_DIR)/page_files.cpp
	$(CXX) $(GATEWAY_CXXFLAGS) -Igateway $(GATEWAY_FLAGS) -c -o $@ $<

$(GATEWAY_DIR)/ojs-gateway: $(GATEWAY_OBJS)
	$(CXX) $(GATEWAY_FLAGS) $(GATEWAY_LDFLAGS) -o $@ $^ -lpq -lcrypto -lcurl -ljansson -lpthread

build/ojs-gateway: $(GATEWAY_DIR)/ojs-gateway
	cp -f $< $@
-include $(GATEWAY_OBJS:.o=.d)

bench: ## measure against other queues in one run (ARGS="--quick")
	bench/run $(ARGS)

torture: ## random operations under crashes, then a check of the history (ARGS=…)
	test/torture/run $(ARGS)

freeze: $(DATA_built) ## at a release: keep this version's scripts for ever
	@for script in $(notdir $(DATA_built)); do \
		[ ! -e "sql/versions/$$script" ] || { echo "sql/versions/$$script is frozen already"; exit 1; }; \
	done
	cp $(DATA_built) sql/versions/
	sed -i '/^--/!d' sql/versions/next.sql
	@$(MAKE) --no-print-directory -C router freeze PG_CONFIG='$(PG_CONFIG)'

deb: ## build Debian packages into build/deb (docs/how-to/operating.md)
	@scripts/install-deps deb
	@scripts/deb

# The install script, which META.json names, is in it as well: it is made of files, and git does not know it.
dist: $(INSTALL_SCRIPT_SQL) ## make the archive for PGXN of what is committed: build/ojs-VERSION.zip
	git archive --format=zip -o build/ojs-$(EXTVERSION).zip --prefix=ojs-$(EXTVERSION)/sql/ --add-file=$< \
		--prefix=ojs-$(EXTVERSION)/ HEAD

installcheck-pgtap:
	test/lib/pgtap $(PGTAP)

# For test/lint.
list-sql:
	@printf '%s\n' $(SQL_ONCE) -- $(SQL_CODE) -- $(SQL_LAST)
