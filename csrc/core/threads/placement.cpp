#include "placement.h"

#if defined(__linux__) && !defined(XNORPP_NO_THREADS)
#include <pthread.h>

namespace xnorpp {

void Placement::move(std::vector<std::thread> &workers, int core) {
    core_ = core;
    if (refused_ || core < 0 || core >= CPU_SETSIZE) return;
    masks_.resize(workers.size());
    for (size_t i = 0; i < workers.size(); i++) {
        const pthread_t worker = workers[i].native_handle();
        Mask &mask = masks_[i];
        cpu_set_t now;
        if (pthread_getaffinity_np(worker, sizeof now, &now)) return void(refused_ = true);
        // A mask that is not the one given last was set by someone else, and is what counts from now on.
        if (!mask.known || !CPU_EQUAL(&now, &mask.given)) mask.allowed = now, mask.known = true;
        mask.given = mask.allowed;
        CPU_CLR(core, &mask.given);
        if (CPU_COUNT(&mask.given) == 0) mask.given = mask.allowed;
        if (CPU_EQUAL(&now, &mask.given)) continue;
        if (pthread_setaffinity_np(worker, sizeof mask.given, &mask.given)) return void(refused_ = true);
    }
}

}  // namespace xnorpp
#endif
