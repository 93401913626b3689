// Limits of this machine, on one thread, measured in a moment.
#pragma once
#include <cstdint>

namespace lowbit {

double dot_limit();                                // 8-bit dot products, operations a second; 0: no loop measures it
double fma_limit();                                // f32, operations a second
double read_limit(int64_t bytes, double seconds);  // bytes a second, of so many read again and again

}  // namespace lowbit
