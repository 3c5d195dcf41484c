// answers MODEL IMAGES OUT [ISA]: runs raw images with the C library and writes the outputs as float32, first from bytes, then from
// floats that stand for the same numbers. Prints the version, the kernels and the number of threads.
#include <xnorpp.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

static std::vector<unsigned char> read_all(const char *name) {
    std::vector<unsigned char> bytes;
    std::FILE *file = std::fopen(name, "rb");
    if (!file) std::exit(3);
    unsigned char part[4096];
    for (size_t count; (count = std::fread(part, 1, sizeof part, file)) > 0;) bytes.insert(bytes.end(), part, part + count);
    std::fclose(file);
    return bytes;
}

int main(int count, char **arguments) {
    if (count < 4) return 2;
    xnorpp_options options = XNORPP_OPTIONS;
    options.isa = count > 4 ? arguments[4] : nullptr;
    options.threads = 2;
    xnorpp_error error;
    xnorpp_model *model;
    xnorpp_status status = xnorpp_load(arguments[1], &options, &model, &error);
    if (status == XNORPP_ERROR_THREADS) options.threads = 1, status = xnorpp_load(arguments[1], &options, &model, &error);
    if (status) return std::fprintf(stderr, "%s\n", error.message), 1;
    const std::vector<unsigned char> bytes = read_all(arguments[2]);
    const size_t elements = xnorpp_input(model).elements, images = bytes.size() / elements, classes = xnorpp_output(model, 0).elements;
    std::vector<float> scores(images * classes), floats(bytes.size());
    for (size_t i = 0; i < bytes.size(); i++) floats[i] = (float)bytes[i] / 64.0f - 2.0f;
    float *const outputs[] = {scores.data()};
    std::FILE *out = std::fopen(arguments[3], "wb");
    if (!out) return 3;
    if (xnorpp_run_bytes(model, bytes.data(), images, outputs, &error)) return std::fprintf(stderr, "%s\n", error.message), 1;
    std::fwrite(scores.data(), sizeof(float), scores.size(), out);
    if (xnorpp_run_floats(model, floats.data(), images, outputs, &error)) return std::fprintf(stderr, "%s\n", error.message), 1;
    std::fwrite(scores.data(), sizeof(float), scores.size(), out);
    std::fclose(out);
    std::printf("%s %s %d\n", xnorpp_version(), xnorpp_model_isa(model), xnorpp_threads(model));
    xnorpp_free(model);
    return 0;
}
