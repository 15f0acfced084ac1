# ctest includes this before it runs, once per program: each suite of a GoogleTest program (what stands before the dot of a
# test's name) becomes one test of ctest, in a process of its own. One process per test would take longer to start than
# most tests take to run. In the folder `results` NAME.count says how many tests a suite has, and NAME.json, which the
# program writes, how each of them went: scripts/step_report.py adds them up.
#
# Given: program, prefix, filter (negative patterns, or nothing), label, seconds, properties, results.
set(suites not_listed.) # where the program cannot be asked: it says why when it runs, and the test fails
set(listed "")
if(EXISTS "${program}")
  execute_process(COMMAND "${program}" --gtest_list_tests "--gtest_filter=*${filter}" OUTPUT_VARIABLE listed
                  RESULT_VARIABLE code TIMEOUT 60)
  if(code EQUAL 0)
    string(REGEX MATCHALL "\n[^ \n]+\\." suites "\n${listed}")
    list(TRANSFORM suites STRIP)
  endif()
endif()
foreach(suite IN LISTS suites)
  set(tests "")
  string(REGEX REPLACE "\\.$" "" name "${prefix}.${suite}")
  string(REPLACE "/" "-" file "${name}")
  set(file "${results}/${file}")
  # The lines below the suite's own, up to the next suite's.
  string(FIND "\n${listed}" "\n${suite}" begin)
  if(begin GREATER_EQUAL 0)
    string(SUBSTRING "${listed}" ${begin} -1 tests)
    string(REGEX MATCH "^[^\n]*(\n  [^\n]*)*" tests "${tests}")
    string(REGEX MATCHALL "\n  [^\n]" tests "${tests}")
  endif()
  list(LENGTH tests count)
  file(WRITE "${file}.count" "${count}")
  add_test("${name}" "${program}" --gtest_brief=1 "--gtest_filter=${suite}*${filter}" "--gtest_output=json:${file}.json")
  set_tests_properties("${name}" PROPERTIES LABELS "${label}" TIMEOUT "${seconds}" SKIP_RETURN_CODE 77 COST "${count}"
                                            ${properties})
endforeach()
