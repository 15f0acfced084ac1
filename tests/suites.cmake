# ctest includes this before it runs, once per program: each suite of a GoogleTest program (what stands before the dot of a
# test's name) becomes one test of ctest, in a process of its own. One process per test would take longer to start than
# most tests take to run; with `each` there is one all the same, for tests that look at the memory of their process. In the
# folder `results` NAME.count says how many tests there are, and NAME.json, which the program writes, how each of them went:
# scripts/step_report.py adds them up.
#
# Given: program, prefix, filter (negative patterns, or nothing), each, label, seconds, properties, results.

# moe64_add_tests(name pattern count): the tests of the program that match the pattern.
macro(moe64_add_tests name pattern count)
  string(REPLACE "/" "-" file "${prefix}.${name}")
  file(WRITE "${results}/${file}.count" "${count}")
  add_test("${prefix}.${name}" "${program}" --gtest_brief=1 "--gtest_filter=${pattern}${filter}"
           "--gtest_output=json:${results}/${file}.json")
  set_tests_properties("${prefix}.${name}" PROPERTIES LABELS "${label}" TIMEOUT "${seconds}" SKIP_RETURN_CODE 77
                                                      COST "${count}" ${properties})
endmacro()

set(listed "")
set(code 1)
if(EXISTS "${program}")
  execute_process(COMMAND "${program}" --gtest_list_tests "--gtest_filter=*${filter}" OUTPUT_VARIABLE listed
                  RESULT_VARIABLE code TIMEOUT 60)
endif()
if(NOT code EQUAL 0)
  moe64_add_tests(not_listed "*" 1) # the program says why when it runs, or that it is not there
  return()
endif()

# Lines of a suite, `suite.  # comment`, are followed by those of its tests, `  test  # comment`.
string(REGEX REPLACE " *#[^\n]*" "" listed "${listed}")
string(REGEX MATCHALL "[^\n]+" lines "${listed}")
if(NOT lines MATCHES ";  ")
  add_test("${prefix}.has_no_tests" "${CMAKE_COMMAND}" -E false)
  set_tests_properties("${prefix}.has_no_tests" PROPERTIES LABELS "${label}")
endif()
set(suite "")
foreach(line IN LISTS lines ITEMS "end.")
  if(line MATCHES "^  (.+)$")
    math(EXPR count "${count} + 1")
    if(each)
      moe64_add_tests("${suite}${CMAKE_MATCH_1}" "${suite}${CMAKE_MATCH_1}" 1)
    endif()
  elseif(line MATCHES "^[^ ]+\\.$")
    if(suite AND NOT each)
      string(REGEX REPLACE "\\.$" "" name "${suite}")
      moe64_add_tests("${name}" "${suite}*" "${count}")
    endif()
    set(suite "${line}")
    set(count 0)
  endif()
endforeach()
