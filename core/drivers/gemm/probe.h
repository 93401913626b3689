// Limits of this machine, measured on one thread.
#pragma once
#include <cstdint>

namespace lowbit {

double dot_limit();                                // 8-bit dot products, operations per second; 0: not measurable
double fma_limit();                                // f32 multiply-adds, operations per second
double read_limit(int64_t bytes, double seconds);  // bytes per second, reading `bytes` repeatedly

}  // namespace lowbit
