// What a WebAssembly module needs in place of C++ exceptions: a throw ends the call by way of the page, which throws a JavaScript
// error and gives the stack back (web/src/instance.ts). Everything that is thrown here derives from std::exception.
#include <cstdlib>
#include <cstring>
#include <exception>
#include <typeinfo>

extern "C" {
__attribute__((import_module("xnorpp"), import_name("fail"))) [[noreturn]] void xnorpp_fail(const char *message, size_t length);
void *__cxa_allocate_exception(size_t size) noexcept { return std::malloc(size); }
[[noreturn]] void __cxa_throw(void *object, void *, void (*)(void *)) {
    const char *message = ((std::exception *)object)->what();
    xnorpp_fail(message, std::strlen(message));
}
}
