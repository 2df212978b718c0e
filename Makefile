# make quickstart   set up and run the main job on the embedded store
# make test         set up and run every test
# make lint         gofmt, go vet, staticcheck
# make fuzz         a short run of every fuzz target (FUZZTIME=5s)
# make bench        every benchmark there is; make bench-engine the engine's,
#                   make bench-postgres the PostgreSQL store's
# make hadoop       fetch Hadoop once and leave one running, which the tests then
#                   use; make hadoop-stop ends it
# make hive         the same for Hive, beside that Hadoop; make hive-stop ends it
# make bench-hdfs   the engine on a real name node
# make bench-hive   a publish by hive.stage_and_swap on a real HiveServer2
# make soak         crash rounds for hours (SOAK=2h), and the tests of Hive with
#                   every cut of a connection in a publish of its own

SHELL := /bin/bash
GO ?= go
FUZZTIME ?= 5s
SOAK ?= 2h
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2

.PHONY: build quickstart setup test lint fuzz bench bench-engine bench-postgres soak clean hadoop hadoop-stop hive hive-stop bench-hdfs bench-hive

build:
	$(GO) build -o bin/commitstep ./cmd/commitstep

quickstart:
	$(GO) run ./cmd/commitstep quickstart

setup:
	scripts/setup.sh

test: setup
	scripts/test.sh

hadoop:
	scripts/hadoop.sh
	$(GO) run ./internal/hadoopkit/hadoop up

hadoop-stop:
	$(GO) run ./internal/hadoopkit/hadoop down

hive: hadoop
	scripts/hive.sh
	$(GO) run ./internal/hivekit/hive up

hive-stop:
	$(GO) run ./internal/hivekit/hive down

lint:
	@out=$$(gofmt -l $$(git ls-files -co --exclude-standard '*.go')); if [ -n "$$out" ]; then echo "not gofmt-ed:"; echo "$$out"; exit 1; fi
	$(GO) vet ./...
	$(GO) run $(STATICCHECK) ./...

fuzz:
	FUZZTIME=$(FUZZTIME) scripts/fuzz.sh

bench: bench-engine bench-postgres bench-hdfs bench-hive

bench-engine:
	$(GO) run ./bench

bench-postgres:
	$(GO) run ./bench/postgres

soak:
	COMMITSTEP_SOAK=$(SOAK) $(GO) test -count=1 -timeout 0 -v -run 'Soak' ./integration/...
	COMMITSTEP_SOAK=$(SOAK) $(GO) test -count=1 -timeout 0 -v ./integration/hive

clean:
	rm -rf bin bench/out commitstep-quickstart

bench-hdfs:
	scripts/hadoop.sh
	$(GO) run ./bench/hdfs

bench-hive:
	scripts/hadoop.sh
	scripts/hive.sh
	$(GO) run ./bench/hive
