PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: install demo test test-flower check bench clean

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt src/fedclade/clients/batched/kernel.c
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt torch==2.13.0
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev,docs,pictures,report,flower-sim]'
	touch $@

demo: install
	$(BIN)/fedclade demo

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: check
	OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses auto --dist loadfile

# The same tests as other processors would run them: other instruction sets round otherwise.
PORTABLE := ATEN_CPU_CAPABILITY=default ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=SSE41 MKL_CBWR=COMPATIBLE \
	OPENBLAS_CORETYPE=Haswell
TRAINING_TESTS := tests/methods tests/clients tests/engines tests/runs tests/models

.PHONY: test-portable test-one-other
test-portable: check
	for set in $(PORTABLE); do \
		echo "== $$set"; \
		env $$set OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses auto --dist loadfile || exit 1; \
	done

# The tests that train, under the plainest of the sets: what CI can afford.
test-one-other: install
	ATEN_CPU_CAPABILITY=default MKL_CBWR=COMPATIBLE OMP_NUM_THREADS=1 \
		$(BIN)/pytest --numprocesses auto --dist loadfile $(TRAINING_TESTS)

# Real Flower processes on this machine: minutes, not seconds.
test-flower: install
	OMP_NUM_THREADS=1 $(BIN)/pytest -m deployed

bench: install
	$(BIN)/python benchmarks/speed.py
	$(BIN)/python benchmarks/scale.py --flower 1000

.PHONY: dist  # wheel and sdist, checked; nothing is uploaded
dist: install
	$(PYTHON) -m venv .venv/dist
	.venv/dist/bin/pip install --quiet build twine
	rm -rf dist && .venv/dist/bin/python -m build
	.venv/dist/bin/twine check --strict dist/*

clean:
	rm -rf $(VENV) build dist site

.PHONY: docs  # the documentation site, in site/; its reference is made from the code
docs: install
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --clean

.PHONY: pictures  # of the README and the gallery; needs chromium and chromium-driver
pictures: install
	$(BIN)/python studies/pictures.py
	$(BIN)/python studies/concepts.py
	$(BIN)/python studies/gallery.py

# Real data for these: FEDCLADE_DATA or the user's cache (`fedclade data list`).
.PHONY: results-small results-benchmark results-automatic reproductions
results-small: install
	$(BIN)/python studies/results.py

results-benchmark: install
	$(BIN)/fedclade benchmark --known docs/benchmark.csv --page docs/benchmark.md

results-automatic: install
	$(BIN)/python studies/automatic.py --out docs/results/automatic.md

# How well clade finds groups, and how often it splits clients that are alike.
.PHONY: results-groups
results-groups: install
	$(BIN)/python studies/groups.py --out docs/results/groups.md

# How choices in clade were settled, by rows of the training files alone.
.PHONY: results-choices
results-choices: install
	$(BIN)/python studies/choices.py --out docs/results/choices.md

# What one lying client in ten can do; what damage to a run's files can do.
.PHONY: results-attacks results-reliability
results-attacks: install
	$(BIN)/python studies/attacks.py --out docs/results/attacks.md

results-reliability: install
	$(BIN)/python tools/reliability.py

# Tables of the papers at their own settings: many hours of two cores. What the CSV file beside a page holds is not run
# again, so that tables grow over days; `make results-small` then says in docs/results.md what it means, claim by claim.
COMMON := --row FedAvg --row IFCA --row "PACFL, its authors' angles and threshold" --row "PACFL, automatic" \
	--row "FedClust, the paper's K" --row "FedClust, automatic"
SEVERAL := $(COMMON) --row LG
FEW := $(COMMON) --row FedProx --row CFL
columns = $(foreach kind,1 2 3,--column "$(1), Non-IID-$(kind)") --column "$(1), Non-IID-3, labels alike"
MNIST := $(call columns,MNIST)
TRIGGER := --row FedAvg --row "HiCFL, the paper's rule"
MNISTS := $(MNIST) $(call columns,FashionMNIST)
ADACFLS := --column "MNIST, alpha 0.5" --column "MNIST, alpha 0.8" --column "MNIST, alpha 1.0" --column "MNIST, B"
TEN := --row "K = 10, all members" --row "K = 10, one at random" --row "K = 10, power of choice"

# $(call page,ITEM,OPTIONS): its page is docs/results/PAPER-ITEM.md.
page = $(BIN)/fedclade reproduce $(1) $(2) --page docs/results/$(subst /,-,$(1)).md \
	$(patsubst %,--known %,$(wildcard docs/results/$(subst /,-,$(1)).csv))

reproductions: install
	$(call page,fedclust/table1,--scale full --column FMNIST --seeds 1)
	$(call page,fedclust/table1,--scale full --column FMNIST --seeds 3 $(SEVERAL))
	$(call page,fedclust/table1,--scale full --column CIFAR-10 --seeds 1 $(FEW))
	$(call page,fedclust/table1,--scale full --column FMNIST --column CIFAR-10 --only-finished)
	$(call page,fedclust/table4,--scale full --column FMNIST --only-finished)
	$(call page,fedsccs/fig5,--scale full --seeds 3)
	$(call page,fedsccs/fig8,--scale full --seeds 3 $(TEN))
	$(call page,hicfl/table2,--scale full --seeds 1 $(MNISTS))
	$(call page,hicfl/table2,--scale full --seeds 3 $(MNISTS) $(TRIGGER))
	$(call page,hicfl/table2,--scale full $(MNISTS) --only-finished)
	$(call page,hicfl/table3,--scale full --seeds 1 $(MNISTS))
	$(call page,hicfl/table3,--scale full $(MNISTS) --only-finished)
	$(call page,hicfl/table4,--scale full --seeds 5)
	for item in fig1 fig2 fig4 fig6; do \
		$(BIN)/fedclade reproduce hicfl/$$item --scale full --seeds 1 --page docs/results/hicfl-$$item.md || exit 1; \
	done
	$(call page,adacfl/table2,--scale full --seeds 1 $(ADACFLS))
	$(call page,adacfl/table3,--scale full --seeds 1 $(ADACFLS))

# MTCFL's thresholds at HiCFL's settings, by rows of the training files alone.
.PHONY: results-mtcfl
results-mtcfl: install
	$(BIN)/python studies/mtcfl.py --out docs/results/mtcfl.md

# A SuperLink, SuperNodes, TLS and keys; and Flower's simulation with 1,000 clients.
.PHONY: results-deployed results-simulation
results-deployed: install
	$(BIN)/python studies/deployed.py --out docs/results/deployed.md

results-simulation: install
	$(BIN)/python studies/simulation.py --out docs/results/simulation.md
