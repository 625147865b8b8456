// Initial values of tables and parameters: kernels/src/random.rs on a device, bit for bit.
//
// An element depends on the key, its row and its column in the whole table, so a shard makes its own. Sums and
// products are not fused and square roots are rounded correctly, as on the CPU; the logarithm and the sine are
// the same polynomials.
#include "random.cuh"

// Natural logarithm of a normal positive number.
DEVICE float plain_ln(float x) {
    uint32_t bits = __float_as_uint(x);
    // Mantissa in [sqrt(1/2), sqrt(2)).
    uint32_t shifted = bits - 0x3f3504f3u;
    float e = float(int32_t(shifted) >> 23);
    float m = __uint_as_float((shifted & 0x007fffffu) + 0x3f3504f3u) - 1.0f;
    float z = m * m;
    const float terms[8] = {-1.151461e-1f,   1.1676999e-1f, -1.2420141e-1f, 1.4249323e-1f,
                            -1.6668058e-1f, 2.0000715e-1f, -2.4999994e-1f, 3.333333e-1f};
    float p = 7.037684e-2f;
#pragma unroll
    for (uint32_t i = 0; i < 8; i++) {
        p = p * m + terms[i];
    }
    float y = p * m * z + e * -2.1219444e-4f - 0.5f * z;
    return m + y + e * 0.6933594f;
}

// One of a pair of standard normal numbers from a pair of words: sqrt(-2 ln u) (cos, sin)(2 pi v).
DEVICE float box_muller(uint32_t a, uint32_t b, bool sine) {
    // u in (0, 1), never an end.
    float u = (float(int32_t(a >> 9)) + 0.5f) * (1.0f / 8388608.0f);
    float radius = sqrtf(-2.0f * plain_ln(u));
    // A quarter turn's number and what is left of the angle, within an eighth of a turn.
    uint32_t turn = b + (1u << 29);
    uint32_t quarter = turn >> 30;
    float rest = float(int32_t(turn & 0x3fffffffu) - (1 << 29));
    float x = rest * (1.57079632679489661923f / 1073741824.0f);
    float z = x * x;
    float sin = ((-1.9515296e-4f * z + 8.332161e-3f) * z - 1.6666655e-1f) * z * x + x;
    float cos = ((2.4433157e-5f * z - 1.3887316e-3f) * z + 4.1666646e-2f) * z * z - 0.5f * z + 1.0f;
    bool swapped = (quarter & 1) != 0;
    float value = swapped != sine ? sin : cos;
    uint32_t sign = sine ? (quarter & 2) << 30 : ((quarter + 1) & 2) << 30;
    return radius * __uint_as_float(__float_as_uint(value) ^ sign);
}

// Random values: `scale` times a standard normal number (`normal`) or one in [0, 1), plus `shift`. Row i of `out` is row
// `numbers[i]` of the table, or `first_row + i` where there are no numbers; its columns are those from `first_column`.
KERNEL(initial_random)
(uint32_t key0, uint32_t key1, uint32_t normal, float scale, float shift, uint64_t first_row, const uint64_t* numbers,
 uint32_t first_column, float* out, uint64_t rows, uint64_t columns) {
    for (uint64_t i = thread_in_grid(); i < rows * columns; i += threads_of_grid()) {
        uint64_t row = i / columns;
        uint32_t column = uint32_t(i - row * columns) + first_column;
        uint32_t words[4];
        uint32_t which = column / COUNTERS % 4;
        words_of_row(
            key0, key1, numbers ? numbers[row] : first_row + row,
            column / (4 * COUNTERS) * COUNTERS + column % COUNTERS, words);
        float value;
        if (normal) {
            value = which < 2 ? box_muller(words[0], words[1], which == 1) : box_muller(words[2], words[3], which == 3);
        } else {
            uint32_t word = which == 0 ? words[0] : which == 1 ? words[1] : which == 2 ? words[2] : words[3];
            value = float(int32_t(word >> 8)) * (1.0f / 16777216.0f);
        }
        out[i] = value * scale + shift;
    }
}

// (((row 2654435761 + column 40503 + salt 97) mod 2^32) / 2^32 - 0.5) 2 scale; rows and columns as above.
KERNEL(initial_hash)
(uint64_t salt, double scale, uint64_t first_row, const uint64_t* numbers, uint32_t first_column, float* out,
 uint64_t rows, uint64_t columns) {
    for (uint64_t i = thread_in_grid(); i < rows * columns; i += threads_of_grid()) {
        uint64_t row = i / columns;
        uint64_t column = i - row * columns + first_column;
        uint64_t number = numbers ? numbers[row] : first_row + row;
        uint32_t h = uint32_t(number * 2654435761ull + salt * 97ull + column * 40503ull);
        out[i] = float((double(h) / 4294967296.0 - 0.5) * 2.0 * scale);
    }
}
