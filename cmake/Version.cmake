# generated/rk_version.h: what `ripplekv version` prints. The git description is looked up at every
# build; the header is touched only when something in it changes.
#
# As a script (cmake -P) it writes the header; included, it sets up the target rk_version.
if(CMAKE_SCRIPT_MODE_FILE)
  set(RK_GIT "unknown")
  execute_process(COMMAND git -C ${RK_SOURCE} describe --always --dirty --tags
    OUTPUT_VARIABLE described ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE failed)
  if(NOT failed)
    set(RK_GIT "${described}")
  endif()
  configure_file(${RK_SOURCE}/cmake/rk_version.h.in ${RK_OUT} @ONLY)
  return()
endif()

string(TOUPPER "${CMAKE_BUILD_TYPE}" type)
string(STRIP "${CMAKE_C_FLAGS} ${CMAKE_C_FLAGS_${type}}" RK_BUILD_FLAGS)
list(JOIN RK_FLAGS " " all_flags)
string(STRIP "${RK_BUILD_FLAGS} ${all_flags}" RK_BUILD_FLAGS)
set(version_args
  -DRK_SOURCE=${CMAKE_SOURCE_DIR}
  -DRK_OUT=${CMAKE_BINARY_DIR}/generated/rk_version.h
  -DRK_VERSION=${PROJECT_VERSION}
  "-DRK_COMPILER=${CMAKE_C_COMPILER_ID} ${CMAKE_C_COMPILER_VERSION}"
  "-DRK_BUILD_TYPE=${CMAKE_BUILD_TYPE}"
  "-DRK_BUILD_FLAGS=${RK_BUILD_FLAGS}"
  "-DRK_LIBRARIES=${RK_LIBRARY_VERSIONS}")
add_custom_target(rk_version
  COMMAND ${CMAKE_COMMAND} ${version_args} -P ${CMAKE_SOURCE_DIR}/cmake/Version.cmake
  BYPRODUCTS ${CMAKE_BINARY_DIR}/generated/rk_version.h
  COMMENT "Version header" VERBATIM)
