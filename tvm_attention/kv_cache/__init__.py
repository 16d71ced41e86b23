"""Keys and values kept from call to call: in one tensor a batch, or in pages; as floats or as int8."""

from tvm_attention.kv_cache.cache import KVCache
from tvm_attention.kv_cache.paged_cache import PagedKVCache
from tvm_attention.kv_cache.paged_call import paged_attention
from tvm_attention.kv_cache.quantisation import quantise

__all__ = ["KVCache", "PagedKVCache", "paged_attention", "quantise"]
