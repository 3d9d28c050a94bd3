# Tests by file name: tests/test_<name>.c is a suite of rk_tests (rk_suite_<name>), tests/mpi_<name>.c
# a program for 1, 2, 3 and 4 ranks, tests/<name>.sh a script.
#
# Labels: suites "unit", suites golden_* "golden", programs "mpi", scripts none; a comment
# "label: golden long" in the file replaces these. "timeout: 900" likewise sets the seconds (before
# the factor for sanitizers). A test that exits 77 counts as skipped.

set(tests ${CMAKE_SOURCE_DIR}/tests)
file(GLOB suite_sources CONFIGURE_DEPENDS ${tests}/test_*.c)
file(GLOB mpi_sources CONFIGURE_DEPENDS ${tests}/mpi_*.c)
file(GLOB scripts CONFIGURE_DEPENDS ${tests}/*.sh)
list(REMOVE_ITEM scripts ${tests}/env.sh)

set(slow 1)
if(CMAKE_BUILD_TYPE STREQUAL "Asan")
  set(slow 5)
endif()

# A Python that can read HDF5: the first on PATH need not be the one with the system's packages.
if(NOT DEFINED RK_PYTHON)
  set(RK_PYTHON "" CACHE STRING "Python with h5py, for tests")
  foreach(python python3 /usr/bin/python3)
    execute_process(COMMAND ${python} -c "import h5py" RESULT_VARIABLE failed OUTPUT_QUIET ERROR_QUIET)
    if(NOT failed)
      set_property(CACHE RK_PYTHON PROPERTY VALUE ${python})
      break()
    endif()
  endforeach()
endif()

function(rk_test name file labels timeout slots)
  set_property(DIRECTORY ${CMAKE_SOURCE_DIR} APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
  file(STRINGS ${file} line REGEX "^[ /*#]*label: [a-z]" LIMIT_COUNT 1)
  if(line MATCHES "label: ([a-z][a-z ]*[a-z])")
    string(REPLACE " " ";" labels "${CMAKE_MATCH_1}")
  endif()
  file(STRINGS ${file} line REGEX "^[ /*#]*timeout: [0-9]" LIMIT_COUNT 1)
  if(line MATCHES "timeout: ([0-9]+)")
    set(timeout ${CMAKE_MATCH_1})
  endif()
  math(EXPR timeout "${timeout} * ${slow}")
  add_test(NAME ${name} COMMAND bash ${tests}/env.sh ${CMAKE_BINARY_DIR} ${ARGN}
    WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
  set_tests_properties(${name} PROPERTIES LABELS "${labels}" TIMEOUT ${timeout}
    PROCESSORS ${slots} SKIP_RETURN_CODE 77 ENVIRONMENT "RIPPLEKV_PYTHON=${RK_PYTHON}")
endfunction()

# Every other .c in tests/ is help that suites and programs share.
file(GLOB helpers CONFIGURE_DEPENDS ${tests}/*.c)
list(REMOVE_ITEM helpers ${tests}/main.c ${tests}/tool_tiny_model.c ${suite_sources} ${mpi_sources})
add_library(rk_harness STATIC ${helpers})
target_compile_definitions(rk_harness PRIVATE RK_SOURCE_ROOT="${CMAKE_SOURCE_DIR}")
target_link_libraries(rk_harness PUBLIC rk::cunit rk::lzma rk_cli)

# Makes the small models of the shell suites.
add_executable(make_tiny ${tests}/tool_tiny_model.c)
target_link_libraries(make_tiny PRIVATE rk_harness)

# suites.inc: one line per suite, read by tests/suites.h.
set(suites "")
foreach(file ${suite_sources})
  get_filename_component(name ${file} NAME_WE)
  string(REGEX REPLACE "^test_" "" name ${name})
  string(APPEND suites "RK_SUITE(${name})\n")
endforeach()
file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/generated/suites.inc CONTENT "${suites}" @ONLY)

add_executable(rk_tests ${tests}/main.c ${suite_sources})
add_dependencies(rk_tests rk_version)
target_link_libraries(rk_tests PRIVATE rk_harness)
foreach(file ${suite_sources})
  get_filename_component(name ${file} NAME_WE)
  string(REGEX REPLACE "^test_" "" name ${name})
  if(name MATCHES "^golden_")
    rk_test(${name} ${file} golden 900 1 ${CMAKE_BINARY_DIR}/rk_tests ${name})
  else()
    rk_test(${name} ${file} unit 300 1 ${CMAKE_BINARY_DIR}/rk_tests ${name})
  endif()
endforeach()

foreach(file ${mpi_sources})
  get_filename_component(name ${file} NAME_WE)
  add_executable(${name} ${file})
  target_link_libraries(${name} PRIVATE rk_harness rk::mpi)
  foreach(np 1 2 3 4)
    rk_test(${name}_np${np} ${file} mpi 120 2
      ${RK_MPIRUN} -n ${np} ${CMAKE_BINARY_DIR}/${name})
  endforeach()
endforeach()

foreach(file ${scripts})
  get_filename_component(name ${file} NAME_WE)
  if(name STREQUAL "check_layers")
    rk_test(${name}.sh ${file} unit 60 1 bash ${file})
  else()
    rk_test(${name}.sh ${file} "" 600 2 bash ${file})
  endif()
endforeach()
