// Runs a batch of raw images on several threads and prints the best class of each: ./batch MODEL.xnor IMAGES.raw
//
//     c++ -std=c++17 batch.cpp $(pkg-config --cflags --libs xnorpp) -o batch
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>
#include <xnorpp.h>

struct Free {
    void operator()(xnorpp_model *model) const { xnorpp_free(model); }
};
using Model = std::unique_ptr<xnorpp_model, Free>;

Model load(const std::string &path, int threads) {
    xnorpp_options options = XNORPP_OPTIONS;
    options.threads = threads;
    xnorpp_error error;
    xnorpp_model *model;
    if (xnorpp_load(path.c_str(), &options, &model, &error)) throw std::runtime_error(error.message);
    return Model(model);
}

int main(int count, char **arguments) try {
    if (count != 3) throw std::runtime_error("usage: batch MODEL.xnor IMAGES.raw");
    const Model model = load(arguments[1], 2);
    std::ifstream file(arguments[2], std::ios::binary);
    const std::vector<char> bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    const size_t images = bytes.size() / xnorpp_input(model.get()).elements, classes = xnorpp_output(model.get(), 0).elements;

    std::vector<float> scores(images * classes);
    std::vector<float *> outputs(xnorpp_output_count(model.get()), scores.data());
    xnorpp_error error;
    if (outputs.size() != 1) throw std::runtime_error("the model has several outputs");
    if (xnorpp_run_bytes(model.get(), (const uint8_t *)bytes.data(), images, outputs.data(), &error)) throw std::runtime_error(error.message);
    for (size_t i = 0; i < images; i++) {
        const auto first = scores.begin() + (long)(i * classes);
        const auto best = (size_t)(std::max_element(first, first + (long)classes) - first);
        const char *label = xnorpp_label(model.get(), best);
        std::printf("%zu %s\n", i, label ? label : std::to_string(best).c_str());
    }
} catch (const std::exception &error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
}
