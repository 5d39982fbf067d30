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
        r"\brequires the [\w-]+ package\b|\bEnsure \w+ packages are installed\b",
        r"Failed to infer device type",  # a build of vLLM for another platform, or none
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
        r"\b(?:is|are) (?:not (?:currently |yet )?compatible|incompatible) with\b",
        r"\b(?:can|should) only be (?:used|enabled|set|combined|specified)\b.*\b(?:with|when|if)\b|\bonly works with\b",
        r"\brequires?\b[^.]*(?:`?--[a-z]|\b\w+_\w+ ?(?:=|>|<)|\b[A-Z]+=\d|prefix caching)",
        r"\brequires?\b[^.]*\bto be (?:enabled|disabled|set)\b",
        r"\b\w+_\w+=\S+ (?:must be (?:<|>)=? \w*_|cannot be (?:larger|smaller|greater|less) than \w*_)",
        r"is larger than max_num_batched_tokens",
        r"\bmust be True to use\b|\bis set\b.* but .*\bnot enabled\b|\b(?:should|must) (?:be consistent|match) ?with\b",
        r"\bonly one (?:of .* )?(?:is )?allowed\b|\bspecified via both\b|\bcannot both\b",
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
        r"(?:is|are|was)(?: currently)? not (?:yet |currently )?supported\b",
        r"\bsupports? only\b|\bonly supports?\b|\bcurrently supports\b",
        r"\brequires? (?:an? )?(?:NVIDIA|CUDA|ROCm|XPU|Triton|Model Runner|(?:multimodal|MoE|\w+ )?model\b)",
        r"backend\b.* is not valid for this configuration|Invalid attention backend for|No valid .*\bbackend found",
        r"\bhas been removed\b|\bis deprecated and will be removed\b",
        r"\bnon[- ](?:multimodal|MoE) models?\b|\bmodel is not multimodal\b",
        r"share no supported KV cache block size",
        r"\bunsupported\b",
        r"\b(?:does|do)(?: not|n't) (?:yet |currently )?support\b",
        r"\bnot implemented\b",
        r"NotImplementedError",
        r"must be divisible by|is not divisible by|not a multiple of|must be a multiple of",
        r"(?:minimum|requires?) .*capability",
        r"World size \((?P<world_size><N>)\) is larger than the number of available GPUs \((?P<gpus><N>)\)",
        r"number of required GPUs exceeds the total number of available GPUs",
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
        r"^(?:\w+: )?(?:Invalid|Unknown) ",
        r"\b(?:Must|expected) (?:be )?one of\b|\bValid (?:options|modes|kinds|values|choices) are\b",
        r"\b(?:must|should) be (?:an? |one of|in |between |unique|strictly |non-|positive|greater|less|>|<)",
        r"\bmust (?:not )?(?:contain|have)\b|\bmust be provided\b|\bout of range\b|\bcannot be converted to\b",
        r"\bcannot be (?:0|zero|negative|empty|None)\b",
        r"\bunknown (?:quantization|vLLM|attention|speculative|model)",
        r"Repo(?:sitory)?NotFoundError|GatedRepoError|does not appear to have a file named",
        r"(?:No such file or directory|FileNotFoundError): .*(?:config|model|safetensors)",
    ),
)
