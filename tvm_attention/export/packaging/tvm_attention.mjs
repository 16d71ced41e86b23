// Loads tvm_attention.wasm, which lies beside this file, in Node or a browser. Experimental.
//
//   import { Archive } from "./tvm_attention.mjs";
//   const archive = await Archive.open(await readFile("tvm_attention.wasm"));
//   const out = archive.attention(query, key, value, { queryHeads: 12, queryLength: 128, keyLength: 128, headDim: 64 });

const ABI = 2; // TVA_ABI of tvm_attention.h, whose names and meanings are used here
const DTYPES = { float32: 1, float16: 2, bfloat16: 3, bool: 4 };
const CAUSAL = { none: 0, top_left: 1, bottom_right: 2 };
const BYTES = { 1: 4, 2: 2, 3: 2, 4: 1 };
const PREPARED_BYTES = 224 * 8;

// tva_problem in order: kind (u: uint32, i: int32, f: float, l: int64, p: address) and how many.
const PROBLEM = [
  ["abi", "u"], ["dtype", "i"], ["head_dim", "i"], ["value_dim", "i"], ["batch", "i"], ["query_heads", "i"],
  ["kv_heads", "i"], ["query_length", "i"], ["key_length", "i"], ["causal", "i"], ["query", "l", 3], ["key", "l", 3],
  ["value", "l", 3], ["out", "l", 3], ["scale", "f"], ["softcap", "f"], ["windowed", "i"], ["window_left", "i"],
  ["window_right", "i"], ["mask_dtype", "i"], ["mask_strides", "l", 4], ["has_alibi", "i"], ["has_sinks", "i"],
  ["has_kv_lengths", "i"], ["has_sequences", "i"], ["query_rows", "i"], ["key_rows", "i"], ["page_rows", "i"],
  ["pages", "i"], ["page_columns", "i"], ["page_strides", "l", 2], ["has_lse", "i"], ["lse", "l", 3], ["kv_dtype", "i"],
  ["key_scale", "l", 3], ["value_scale", "l", 3], ["threads", "i"], ["launch", "p"], ["launch_user", "p"], ["target", "p"],
];
const ARRAYS = ["query", "key", "value", "out", "mask", "alibi_slopes", "sinks", "kv_lengths", "key_scale", "value_scale",
  "lse", "sequences", "page_table"];
const SETTERS = { u: "setUint32", i: "setInt32", f: "setFloat32", p: "setUint32" };

// Where each field is, as C lays them out, and the size of the whole.
function layoutOf(fields) {
  const offsets = {};
  let at = 0;
  for (const [name, kind, count = 1] of fields) {
    const size = kind === "l" ? 8 : 4;
    at = Math.ceil(at / size) * size;
    offsets[name] = { at, kind };
    at += size * count;
  }
  return { offsets, bytes: Math.ceil(at / 8) * 8 };
}
const LAYOUT = layoutOf(PROBLEM);

// What the C library's text formatting refers to and never calls here: no environment, no files.
const SYSTEM = new Proxy({}, { get: () => () => 52 });

export class Archive {
  /** From the bytes of tvm_attention.wasm, or a compiled WebAssembly.Module. */
  static async open(source) {
    const module = source instanceof WebAssembly.Module ? source : await WebAssembly.compile(source);
    const system = Object.fromEntries(WebAssembly.Module.imports(module).map((i) => [i.name, SYSTEM[i.name]]));
    system.environ_sizes_get = (count, size) => (archive.view().setUint32(count, 0, true), archive.view().setUint32(size, 0, true), 0);
    const archive = new Archive(await WebAssembly.instantiate(module, { wasi_snapshot_preview1: system }));
    archive.exports._initialize();
    if (archive.exports.tva_abi() !== ABI) throw new Error(`expected ABI ${ABI}, got ${archive.exports.tva_abi()}`);
    return archive;
  }

  constructor(instance) {
    this.exports = instance.exports;
  }

  /**
   * softmax(scale * query key^T) value of dense (batch, heads, rows, dim) typed arrays: Float32Array, or the bits of
   * float16 or bfloat16 in a Uint16Array with `dtype`. Options: batch, queryHeads, kvHeads, queryLength, keyLength,
   * headDim, valueDim, dtype, causal ("top_left", "bottom_right"), scale, softcap, window ([left, right]), mask
   * (Uint8Array, 0 where a key must not be seen, or Float32Array that is added) with maskStrides over (batch, head, query,
   * key), alibiSlopes, sinks, kvLengths (Int32Array), lse (a Float32Array to fill). Returns an array like query.
   * Throws an Error with the archive's own message.
   */
  attention(query, key, value, options) {
    const o = { batch: 1, dtype: "float32", causal: "none", ...options };
    const rows = o.batch * o.queryHeads * o.queryLength;
    const out = new query.constructor(rows * (o.valueDim ?? o.headDim));
    const fields = this.fieldsOf(o);
    const given = { query, key, value, out, mask: o.mask, alibi_slopes: o.alibiSlopes, sinks: o.sinks,
      kv_lengths: o.kvLengths, lse: o.lse };
    this.checkLengths(given, o, rows);
    const kept = [];
    try {
      const addresses = this.put(given, kept);
      const prepared = this.take(PREPARED_BYTES, kept);
      this.check(this.exports.tva_prepare(this.problem(fields, kept), prepared));
      const bytes = this.exports.tva_workspace_bytes(prepared);
      this.check(this.exports.tva_run(prepared, this.addressList(addresses, kept), this.take(bytes, kept), bytes));
      for (const name of ["out", "lse"]) if (given[name]) this.copyBack(given[name], addresses[name]);
    } finally {
      for (const address of kept) this.exports.free(address);
    }
    return out;
  }

  fieldsOf(o) {
    const mask = o.mask === undefined ? 0 : o.mask instanceof Float32Array ? DTYPES.float32 : DTYPES.bool;
    const [left, right] = o.window ?? [0, 0];
    return {
      abi: ABI, dtype: DTYPES[o.dtype] ?? -1, head_dim: o.headDim, value_dim: o.valueDim ?? 0, batch: o.batch,
      query_heads: o.queryHeads, kv_heads: o.kvHeads ?? 0, query_length: o.queryLength, key_length: o.keyLength,
      causal: CAUSAL[o.causal] ?? -1, scale: o.scale ?? 0, softcap: o.softcap ?? 0, windowed: +(o.window !== undefined),
      window_left: left, window_right: right, mask_dtype: mask, mask_strides: o.maskStrides ?? [0, 0, o.keyLength, 1],
      has_alibi: +(o.alibiSlopes !== undefined), has_sinks: +(o.sinks !== undefined),
      has_kv_lengths: +(o.kvLengths !== undefined), has_lse: +(o.lse !== undefined),
    };
  }

  // C trusts sizes: an array must be as long as they say.
  checkLengths(given, o, rows) {
    const keys = o.batch * (o.kvHeads ?? o.queryHeads) * o.keyLength;
    const mask = (o.maskStrides ?? [0, 0, o.keyLength, 1]).reduce(
      (end, stride, i) => end + stride * ([o.batch, o.queryHeads, o.queryLength, o.keyLength][i] - 1), 1);
    const needed = { query: rows * o.headDim, key: keys * o.headDim, value: keys * (o.valueDim ?? o.headDim), mask,
      alibi_slopes: o.batch * o.queryHeads, sinks: o.queryHeads, kv_lengths: o.batch, lse: rows };
    const width = BYTES[DTYPES[o.dtype]];
    for (const [name, least] of Object.entries(needed)) {
      const array = given[name];
      if (array === undefined) continue;
      if (!(array.length >= least)) throw new Error(`${name}: expected ${least} elements, got ${array.length}`);
      const bytes = ["query", "key", "value"].includes(name) ? width : array.BYTES_PER_ELEMENT;
      if (array.BYTES_PER_ELEMENT !== bytes) throw new Error(`${name}: expected elements of ${bytes} bytes for ${o.dtype}`);
    }
  }

  problem(fields, kept) {
    const at = this.take(LAYOUT.bytes, kept);
    const view = this.view();
    for (const [name, value] of Object.entries(fields)) {
      const { at: offset, kind } = LAYOUT.offsets[name];
      if (kind === "l") value.forEach((n, i) => view.setBigInt64(at + offset + 8 * i, BigInt(n), true));
      else view[SETTERS[kind]](at + offset, value, true);
    }
    return at;
  }

  put(given, kept) {
    const addresses = {};
    for (const [name, array] of Object.entries(given)) {
      if (array === undefined) continue;
      addresses[name] = this.take(array.byteLength, kept);
      const bytes = new Uint8Array(array.buffer, array.byteOffset, array.byteLength);
      new Uint8Array(this.exports.memory.buffer).set(bytes, addresses[name]);
    }
    return addresses;
  }

  addressList(addresses, kept) {
    const at = this.take(4 * ARRAYS.length, kept);
    ARRAYS.forEach((name, i) => this.view().setUint32(at + 4 * i, addresses[name] ?? 0, true));
    return at;
  }

  copyBack(array, address) {
    const bytes = new Uint8Array(this.exports.memory.buffer, address, array.byteLength);
    new Uint8Array(array.buffer, array.byteOffset, array.byteLength).set(bytes);
  }

  // Zeroed memory of the module's; what grows the memory moves its buffer, so that none is kept.
  take(bytes, kept) {
    const address = this.exports.malloc(Math.max(bytes, 1));
    if (!address) throw new Error(`no memory for ${bytes} bytes`);
    kept.push(address);
    new Uint8Array(this.exports.memory.buffer, address, bytes).fill(0);
    return address;
  }

  check(status) {
    if (status) throw new Error(this.text(this.exports.tva_last_error()));
  }

  text(address) {
    const bytes = new Uint8Array(this.exports.memory.buffer);
    return new TextDecoder().decode(bytes.slice(address, bytes.indexOf(0, address)));
  }

  view() {
    return new DataView(this.exports.memory.buffer);
  }
}
