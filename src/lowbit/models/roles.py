"""Names of the layers of language models that stay float unless a recipe names them: heads, embeddings, routers."""

from __future__ import annotations

import re

HEADS = re.compile(r"(^|\.)(lm_head|embed_out|cls\.predictions\.decoder)$")
EMBEDDINGS = re.compile(r"(^|\.)(wte|wpe|shared|relative_attention_bias|[^.]*embed[^.]*)$")
ROUTERS = re.compile(r"(^|\.)(gate|router|shared_expert_gate)$")
