# MOE64_GLIBC_STUBS: a folder made by scripts/glibc_stubs.py. Library and tool are linked against it and carry their C++
# library inside, so that they run on older systems than the one that builds: what `make wheel` does. Empty: the system's.
set(MOE64_GLIBC_STUBS "" CACHE PATH "Folder of scripts/glibc_stubs.py to link against, for older systems; empty: this system")
mark_as_advanced(MOE64_GLIBC_STUBS)
if(MOE64_GLIBC_STUBS AND NOT EXISTS "${MOE64_GLIBC_STUBS}/libc.so")
  message(FATAL_ERROR "moe64: MOE64_GLIBC_STUBS is '${MOE64_GLIBC_STUBS}', where there is no libc.so of scripts/glibc_stubs.py")
endif()

# moe64_link_old_glibc(target): a shared library or a program.
function(moe64_link_old_glibc target)
  if(NOT MOE64_GLIBC_STUBS)
    return()
  endif()
  target_sources(${target} PRIVATE "${PROJECT_SOURCE_DIR}/scripts/old_glibc.c")
  # The system's libgcc_s asks for its own glibc; where the result runs lies another.
  # gold, because ld.bfd leaves an empty relocation of a function table, which glibc refuses to load.
  target_link_options(${target} PRIVATE "-B${MOE64_GLIBC_STUBS}" "-L${MOE64_GLIBC_STUBS}" -static-libstdc++ -fuse-ld=gold
                      "LINKER:--allow-shlib-undefined")
  target_link_libraries(${target} PRIVATE -lpthread -ldl -lrt)
endfunction()
