"""How far the memory model is from what engines logged, before any start and after one of the same slice.

`python -m benchmarks.memory_model`. Starts nothing and needs no GPU. A slice is model shape, GPU and vLLM version; the
GPU's memory is taken from its name. Starts are those whose log got as far as "Available KV cache memory".

- `kv_gib_abs_err_cold_median`, `..._max`: of the captured logs (tests/fixtures/logs), each predicted from config.json
  and flags alone. Beside it `naive_kv_gib_abs_err_median`: utilization x total - weights, with the weights predicted.
- `kv_gib_abs_err_warm_median`, `..._max`: over pairs of starts of one slice with other flags, the second predicted
  after the first's facts were seen. A slice with one start has no pair.
- `..._search_...`: the same of the starts of searches on the same kind of GPU (benchmarks/h200), a wider range of
  flags; a correction learns from another start of the searches.
- `..._public_...`: starts that others have published, on other GPUs, of other models and versions (public.json). Few,
  with flags that are partly inferred, but nothing of the model was fitted to them.
- `..._inside_interval_share`: how many of the logged figures lie within the prediction's interval.
- `kv_gib_abs_err_held_out_...`: the logs again, each shifted by the median error of the other slices.

The model's measured constants come from the logs and searches (autotune/spec/engine_memory.py says which from which),
which are of one GPU and one version: their cold figures say how well few constants describe many flags, not how well
the model does elsewhere. For that there are the public starts.

Targets: cold median 0.5, cold maximum 1.0, warm median 0.2.
"""
