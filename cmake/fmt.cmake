# fmt inside the library: its headers alone would instantiate its functions in every file that formats, so they are
# compiled once, in src/core/fmt_library.cpp, and libmoe64 hides them. Neither the library nor its package depends on fmt.
#
# Debian has fmt as a shared library alone, and a static libmoe64 must not bring a second fmt into a program that links
# one: static builds and other versions than 9, whose list of instantiations differs, take the headers alone.
find_package(fmt REQUIRED)
add_library(moe64_fmt INTERFACE)
if(BUILD_SHARED_LIBS AND fmt_VERSION VERSION_GREATER_EQUAL 9 AND fmt_VERSION VERSION_LESS 10)
  target_include_directories(
    moe64_fmt SYSTEM INTERFACE $<TARGET_PROPERTY:fmt::fmt-header-only,INTERFACE_INCLUDE_DIRECTORIES>)
else()
  target_link_libraries(moe64_fmt INTERFACE fmt::fmt-header-only)
endif()
