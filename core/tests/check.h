// What the files of tests share.
#pragma once
#include <string>

#include "base/arch.h"

namespace lowbit {

// Counts a check, and prints the ones that failed.
void report(bool good, const std::string& what);

// The thread pool.
void test_threads();

// Fake quantization on one ISA; f16 only where its stores round as they should.
void test_fake_quant(Isa isa, bool half_stores);

// Integer matrix products on one ISA.
void test_products(Isa isa);

// Schedules of matrix products.
void test_schedule();

// Products of bits.
void test_binary_rows(Isa isa);
void test_binary_drivers();

// Sums, products, bounds, tables and pooling of codes on one ISA.
void test_combine(Isa isa);

// Gates of recurrent layers on one ISA.
void test_gates(Isa isa);

// Scales of least error, error feedback and Cholesky factors on one ISA; scales of f16 only where its stores round.
void test_solve(Isa isa, bool half_stores);

// Depthwise convolution: rows and driver.
void test_dwconv(Isa isa);

// Sketches of streams: rows, and whole streams.
void test_sketch_rows(Isa isa);
void test_sketch_drivers();

}  // namespace lowbit
