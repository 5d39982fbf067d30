"""vtune: finds the vLLM engine flags that serve a workload best, by experiment on the engine itself."""

__version__ = "0.1.0"
