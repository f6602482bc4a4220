"""Heads that others have published, by the target they were trained for (hub names, the target's in lower case)."""

PUBLISHED = {
    "deepseek-ai/deepseek-r1-distill-llama-8b": "yuhuili/EAGLE3-DeepSeek-R1-Distill-LLaMA-8B",
    "lmsys/vicuna-13b-v1.3": "yuhuili/EAGLE3-Vicuna1.3-13B",
    "meta-llama/llama-3.1-8b-instruct": "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B",
    "meta-llama/llama-3.3-70b-instruct": "yuhuili/EAGLE3-LLaMA3.3-Instruct-70B",
    "qwen/qwen3-1.7b": "AngelSlim/Qwen3-1.7B_eagle3",
    "qwen/qwen3-4b": "AngelSlim/Qwen3-4B_eagle3",
    "qwen/qwen3-8b": "AngelSlim/Qwen3-8B_eagle3",
    "qwen/qwen3-32b": "AngelSlim/Qwen3-32B_eagle3",
}
