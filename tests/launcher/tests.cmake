include(launcher/doctor.cmake)
