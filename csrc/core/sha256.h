// SHA-256 (FIPS 180-4).
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

namespace xnorpp {

class Sha256 {
  public:
    void add(const void *bytes, size_t count);
    void add(const std::string &text) { add(text.data(), text.size()); }
    std::string hex();  // ends it

  private:
    void blocks(const uint8_t *from, size_t count);
    uint32_t state_[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    uint64_t length_ = 0;
    uint8_t rest_[64];
    size_t held_ = 0;
};

}  // namespace xnorpp
