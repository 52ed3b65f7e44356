# make native: build the C codecs in place, into s4core/codecs/.
PYTHON ?= $(firstword $(wildcard .venv/bin/python .venv-dev/bin/python) python3)
CMAKE ?= $(firstword $(wildcard $(dir $(PYTHON))cmake) cmake)

.PHONY: native
# Renamed into place: a process that has the old file mapped keeps it.
native:
	$(CMAKE) -S . -B build/native -DCMAKE_BUILD_TYPE=Release -DPython_EXECUTABLE=$(abspath $(shell command -v $(PYTHON)))
	$(CMAKE) --build build/native
	cp build/native/_native.abi3.so s4core/codecs/_native.abi3.so.new
	mv s4core/codecs/_native.abi3.so.new s4core/codecs/_native.abi3.so
