# The Debian package: `cpack -G DEB` in build/release. The package has the files of `cmake --install` and the component `package`:
# units, account and a sample of the settings. Maintainer scripts are in etc/debian.
set(at_package COMPONENT package EXCLUDE_FROM_ALL)
install(FILES etc/systemd/sluice-manager.service etc/systemd/sluice-server.service etc/systemd/sluice-server@.service DESTINATION lib/systemd/system ${at_package})
install(FILES etc/systemd/sluice.sysusers DESTINATION lib/sysusers.d RENAME sluice.conf ${at_package})
install(FILES etc/sluice.conf DESTINATION /etc/sluice ${at_package})
install(FILES LICENSE DESTINATION share/doc/sluice RENAME copyright ${at_package})

set(CPACK_GENERATOR DEB)
set(CPACK_INSTALL_CMAKE_PROJECTS "${CMAKE_BINARY_DIR};sluice;ALL;/;${CMAKE_BINARY_DIR};sluice;package;/")
set(CPACK_SET_DESTDIR ON) # /etc is outside the prefix
set(CPACK_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_PACKAGE_NAME sluice)
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_CONTACT "Sluice <root@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "inference server for large language models")
set(CPACK_DEBIAN_PACKAGE_DESCRIPTION "gRPC server, manager, worker and command line, and the C client's library. Models are GGUF files.")
set(CPACK_DEBIAN_PACKAGE_SECTION net)
set(CPACK_DEBIAN_PACKAGE_PRIORITY optional)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
# Opened at run time, by ranks on several machines only (kernels/comm/ucx_library.c).
set(CPACK_DEBIAN_PACKAGE_SUGGESTS libucx0)
set(CPACK_DEBIAN_PACKAGE_DEPENDS "systemd | systemd-standalone-sysusers | adduser, passwd")
set(CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA ${CMAKE_SOURCE_DIR}/etc/debian/conffiles ${CMAKE_SOURCE_DIR}/etc/debian/triggers
    ${CMAKE_SOURCE_DIR}/etc/debian/postinst ${CMAKE_SOURCE_DIR}/etc/debian/prerm ${CMAKE_SOURCE_DIR}/etc/debian/postrm)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
include(CPack)
