// Normalisation: means and variances in double, of numbers that lie side by side.

namespace {

constexpr int kDoubles = kReals >= 4 ? kReals / 2 : 2;  // of a vector
typedef double Doubles __attribute__((vector_size(kDoubles * 8)));
typedef float Floats __attribute__((vector_size(kDoubles * 4)));

inline Doubles load_doubles(const float *x) {
    Floats u;
    __builtin_memcpy(&u, x, sizeof u);
    return __builtin_convertvector(u, Doubles);
}
// What a sum takes of a number: it less the mean, or the square of that.
template <bool kSquares, class V, class Mean>
inline V term_of(V u, Mean mean) {
    const V v = u - mean;
    return kSquares ? v * v : v;
}

// The sum of kCount of a vector's numbers from `first` on, by halves: a sum waits for three others at most.
template <int kCount>
inline double total(const Doubles &sums, int first = 0) {
    if constexpr (kCount == 1) return sums[first];
    else return total<kCount / 2>(sums, first) + total<kCount / 2>(sums, first + kCount / 2);
}

template <bool kSquares>
inline double sum_of(const float *x, int n, double mean) {
    const auto next = [&](int k) __attribute__((always_inline)) { return term_of<kSquares>(load_doubles(x + k), mean); };
    Doubles sums = {}, others = {};
    int k = 0;
    for (; k + 2 * kDoubles <= n; k += 2 * kDoubles) sums += next(k), others += next(k + kDoubles);
    if (k + kDoubles <= n) sums += next(k), k += kDoubles;
    sums += others;
    double sum = 0;
    for (; k < n; k++) sum += term_of<kSquares>((double)x[k], mean);
    return sum + total<kDoubles>(sums);
}

inline Moments moments_of(double mean, double squares, double count, double eps) {
    return {(float)mean, (float)(1.0 / __builtin_sqrt(squares / count + eps))};
}

// The mean of `rows` rows of n numbers, which lie `stride` apart, and 1/sqrt(variance + eps).
Moments moments(const float *x, size_t stride, int rows, int n, bool centre, double eps) {
    const double count = (double)n * rows;
    double mean = 0, squares = 0;
    if (centre) {
        for (int p = 0; p < rows; p++) mean += sum_of<false>(x + p * stride, n, 0);
        mean /= count;
    }
    for (int p = 0; p < rows; p++) squares += sum_of<true>(x + p * stride, n, mean);
    return moments_of(mean, squares, count, eps);
}

// The sums of kWide vectors of channels over the rows.
template <bool kSquares, int kWide>
inline void add_rows(const float *x, size_t stride, int rows, const Doubles *means, Doubles *sums) {
    Doubles all[kWide] = {};
    for (int p = 0; p < rows; p++)
        for (int j = 0; j < kWide; j++) all[j] += term_of<kSquares>(load_doubles(x + p * stride + j * kDoubles), means[j]);
    for (int j = 0; j < kWide; j++) sums[j] = all[j];
}

// The moments of kWide vectors of channels.
template <int kWide>
inline void some_channels(const float *x, size_t stride, int rows, bool centre, double eps, float *mean, float *factor) {
    Doubles means[kWide] = {}, squares[kWide];
    if (centre) {
        add_rows<false, kWide>(x, stride, rows, means, squares);
        for (int j = 0; j < kWide; j++) means[j] = squares[j] / (double)rows;
    }
    add_rows<true, kWide>(x, stride, rows, means, squares);
    for (int k = 0; k < kWide * kDoubles; k++) {
        const Moments found = moments_of(means[k / kDoubles][k % kDoubles], squares[k / kDoubles][k % kDoubles], rows, eps);
        mean[k] = found.mean, factor[k] = found.factor;
    }
}

// The moments of each channel.
void channel_moments(const float *x, size_t stride, int rows, int channels, bool centre, double eps, float *mean, float *factor) {
    int c = 0;
    for (; c + 4 * kDoubles <= channels; c += 4 * kDoubles) some_channels<4>(x + c, stride, rows, centre, eps, mean + c, factor + c);
    for (; c + kDoubles <= channels; c += kDoubles) some_channels<1>(x + c, stride, rows, centre, eps, mean + c, factor + c);
    for (; c < channels; c++) {
        const Moments found = moments(x + c, stride, rows, 1, centre, eps);
        mean[c] = found.mean, factor[c] = found.factor;
    }
}

// Every group of n numbers of a row by its own moments.
void normalise(const float *x, size_t stride, int rows, int groups, int n, bool centre, double eps, float *to, size_t to_stride) {
    for (int p = 0; p < rows; p++)
        for (int g = 0; g < groups; g++) {
            const float *from = x + p * stride + (size_t)g * n;
            float *out = to + p * to_stride + (size_t)g * n;
            const Moments found = moments(from, 0, 1, n, centre, eps);
            for (int k = 0; k < n; k++) out[k] = (from[k] - found.mean) * found.factor;
        }
}

}  // namespace
