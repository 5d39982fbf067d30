"""How vLLM words a flag that is wrong in itself, can't be done here, or excludes another; and what isn't installed."""

from __future__ import annotations

from autotune.engine.failure_rule import Rule, rule

FLAG_RULES: tuple[Rule, ...] = (
    rule(
        "env.missing_dependency",
        r"ModuleNotFoundError: No module named ['\"](?P<missing>[\w.]+)",
        r"ImportError: (?P<needs>[A-Z][\w .-]*?) is required\b(?:.*?pip install (?P<package>[\w.\[\]=<>-]+))?",
        r"(?:ImportError|ModuleNotFoundError|PackageNotFoundError): ",
        r"\bis required .*\binstall\b",
        r"please (?:pip )?install\b",
        r"(?P<library>[\w.+-]+): cannot open shared object file",
    ),
    rule(
        "config.conflict",
        r"max_num_batched_tokens \((?P<max_num_batched_tokens><N>)\) (?:must be|is) .*?"
        r"\bmax_num_seqs \((?P<max_num_seqs><N>)\)",
    ),
    rule(
        "config.conflict",
        r"max_num_batched_tokens \((?P<max_num_batched_tokens><N>)\) (?:must be|is) .*?"
        r"\bmax_model_len \((?P<max_model_len><N>)\)",
        r"max_num_batched_tokens.*\b(?:smaller|less|greater|larger) than\b.*(?:max_model_len|max_num_seqs)",
    ),
    rule(
        "config.conflict",
        r"(?P<feature>[\w -]+?) (?:is|are) only (?:supported|available|valid) (?:with|when|if) (?P<only_with>[^.]*)",
    ),
    rule(
        "config.conflict",
        r"\bcan ?(?:no|')t be (?:used|enabled|set|combined|specified|paired)\b"
        r".*\b(?:with|together|both|at the same time)\b",
        r"\b(?:is|are) (?:not compatible|incompatible) with\b",
        r"not supported (?:together |in combination |when |if |while )",
        r"(?:cannot|can't) (?:set|use|specify|enable|combine) both\b",
        r"mutually exclusive",
        r"does not match the quantization method specified",
        r"\bnot allowed with argument\b",
    ),
    rule(
        "config.unsupported",
        r"No valid attention backend.*?\w+Config\((?P<asked>[^)]*)\).*?Reasons: \{(?P<reasons>.*)\}",
        r"torch\.(?P<dtype>\w+) is not supported for quantization method (?P<quantization>[\w-]+)\."
        r" Supported dtypes: \[(?P<dtypes>[^\]]*)\]",
        r"quantization method (?P<method>[\w-]+) is not supported for the current GPU\."
        r" Minimum capability: (?P<min_capability><N>)\.? Current capability: (?P<capability><N>)",
        r"unsupported speculative method: ['\"]?(?P<speculative_method>[\w-]+)",
        r"(?P<pipeline>Pipeline parallelism) is not supported",
        r"attention heads \((?P<heads><N>)\) must be divisible by tensor parallel size"
        r" \((?P<tensor_parallel_size><N>)\)",
        r"= (?P<part><N>) is not divisible by weight quantization (?P<block_name>\w+) = (?P<block><N>)",
    ),
    rule(
        "config.unsupported",
        r"No valid attention backend",
        r"No common block size",
        r"(?:is|are|was) not (?:yet |currently )?supported\b",
        r"\bunsupported\b",
        r"\b(?:does|do)(?: not|n't) (?:yet |currently )?support\b",
        r"\bnot implemented\b",
        r"NotImplementedError",
        r"must be divisible by|is not divisible by|not a multiple of|must be a multiple of",
        r"(?:minimum|requires?) .*capability",
        r"\bonly (?:available|supported) (?:on|for)\b",
        r"no kernel image is available",
        r"could not run '.*' with arguments from the",
        r"\b_\w*C(?:_\w+)?::\w+\(\) expected",  # a kernel that this build declares but doesn't have
        r"'_OpNamespace' .* has no attribute",
        r"invalid literal for int\(\) with base 10: 'MIG-",
        r"Supported dtypes: \[",
    ),
    rule(
        "config.invalid",
        r"unrecognized arguments?: (?P<unknown_flag>--[\w.-]+)",
        r"error: argument (?P<flag>--[\w.-]+)[^:]*: invalid choice: '?(?P<value>[^'\s]*)'?"
        r"(?: \(choose from (?P<choices>[^)]*)\))?",
    ),
    rule("config.invalid", r"error: argument (?P<flag>--[\w.-]+)"),
    rule("config.invalid", r"(?P<uncompiled>No compilation mode is set)"),
    rule(
        "config.invalid",
        r"max_model_len \((?P<max_model_len><N>)\) is greater than the derived max_model_len"
        r"(?: \(\w+=(?P<max_model_len_bound><N>))?",
    ),
    rule(
        "config.invalid",
        r"error: argument \S+",
        r"invalid choice: ",
        r"ignored explicit argument",
        r"expected (?:one|at least one) argument",
        r"unexpected keyword argument",
        r"is greater than the derived max_model_len",
        r"^Value error, ",
        r"^Input should be ",
        r"is not a (?:valid|local folder)",
        r"\bunknown (?:quantization|vLLM|attention|speculative|model)",
        r"Repo(?:sitory)?NotFoundError|GatedRepoError|does not appear to have a file named",
        r"(?:No such file or directory|FileNotFoundError): .*(?:config|model|safetensors)",
    ),
)
