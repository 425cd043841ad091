# ctest reads this when it looks for tests. Each suite of a GoogleTest program is one test.
#   DDPRUN_PROGRAM     its path
#   DDPRUN_LIST        where its list of tests is kept, until the program is a newer one
#   DDPRUN_PREFIX      a test's name is this, the suite's and a dot, which `-R Suite.` finds
#   DDPRUN_PROPERTIES  of each test
if(NOT EXISTS "${DDPRUN_PROGRAM}")
  add_test("${DDPRUN_PREFIX}NOT_BUILT" "${DDPRUN_PROGRAM}")
  return()
endif()
# To list them takes a second if the program loads LibTorch. IS_NEWER_THAN is true without a list.
if("${DDPRUN_PROGRAM}" IS_NEWER_THAN "${DDPRUN_LIST}")
  execute_process(COMMAND "${DDPRUN_PROGRAM}" --gtest_list_tests
    OUTPUT_VARIABLE _listed RESULT_VARIABLE _code TIMEOUT 60)
  if(NOT _code EQUAL 0)
    message(FATAL_ERROR "${DDPRUN_PROGRAM} --gtest_list_tests: ${_code}")
  endif()
  file(WRITE "${DDPRUN_LIST}" "${_listed}")
endif()
file(READ "${DDPRUN_LIST}" _listed)
# `Suite.` or `Suite/0.  # TypeParam = int`; its tests are indented below it.
string(REGEX MATCHALL "(^|\n)[A-Za-z0-9_/]+\\." _suites "${_listed}")
if(NOT _suites)
  message(FATAL_ERROR "${DDPRUN_PROGRAM} --gtest_list_tests: no suite")
endif()
foreach(_suite IN LISTS _suites)
  string(STRIP "${_suite}" _suite)
  string(REGEX REPLACE "\\.$" "" _suite "${_suite}")
  add_test("${DDPRUN_PREFIX}${_suite}." "${DDPRUN_PROGRAM}" "--gtest_filter=${_suite}.*")
  set_tests_properties("${DDPRUN_PREFIX}${_suite}." PROPERTIES ${DDPRUN_PROPERTIES})
endforeach()
