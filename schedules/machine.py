"""What a CPU schedule needs to know of a processor core."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MachineParameters:
    """lanes: float32 lanes of a vector register; registers: vector registers; broadcast_operand: whether an
    FMA can broadcast a scalar from memory without a register for it; l1, l2: data cache bytes of a core;
    in_order: whether the core starts instructions in program order, so that a loop must load ahead;
    element_operand: whether an FMA can take its scalar from a lane of a vector register; matrix_unit: whether
    it multiplies tiles of bfloat16 (AMX); exponent_instructions: whether instructions split a number at its
    floor and scale by powers of two (AVX-512's VREDUCEPS and VSCALEFPS); bfmmla: whether a vector instruction
    multiplies small matrices of bfloat16; dot_run: how many
    products of neighbours one adds up in a lane of int32: four of int8 (SDOT), two of int16 (VPMADDWD), none;
    dot_sums: whether it adds them to sums at once (SDOT, VPDPWSSD);
    half_products: whether one adds products of float16 to float32 sums; pair_products: whether one multiplies
    pairs of rows of int8; matrix_integers: whether the matrix unit multiplies tiles of int8, too."""

    lanes: int
    registers: int
    broadcast_operand: bool
    l1: int
    l2: int
    in_order: bool = False
    element_operand: bool = False
    matrix_unit: bool = False
    exponent_instructions: bool = False
    bfmmla: bool = False
    dot_run: int = 0
    dot_sums: bool = False
    half_products: bool = False
    pair_products: bool = False
    matrix_integers: bool = False

    def holds(self, rows: int, vectors: int, least: int = 1) -> bool:
        """Whether a register tile's accumulators, operands and broadcast fit into registers, and are so many
        at least, which hide an FMA's latency."""
        broadcast = 0 if self.broadcast_operand else 1
        return least <= rows * vectors and rows * vectors + vectors + broadcast <= self.registers

    def multiplies_tiles(self, dtype: str) -> bool:
        """Whether tiles of operands of a dtype are multiplied faster than by FMAs. BFMMLA gives four times
        the products, of which float16 and float32 would need four and six."""
        return self.matrix_unit or (self.bfmmla and dtype == "bfloat16")
