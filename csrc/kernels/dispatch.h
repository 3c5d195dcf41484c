// Which kernels run: one ordered table, best first, and last what is chosen by name only. A row counts where it was
// built and is detected.
#pragma once
#include <string>
#include <vector>

#include "kernels.h"

namespace xnorpp {

struct IsaRow {
    const char *name;
    const Kernels *(*kernels)();  // null: not built for this architecture
    bool (*detected)();
};

const std::vector<IsaRow> &isa_table();
std::vector<std::string> available_isas();
// The named kernels, or the best for an empty name; std::invalid_argument says what is available.
const Kernels &choose_kernels(const std::string &name);

}  // namespace xnorpp
