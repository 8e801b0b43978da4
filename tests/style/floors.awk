# Reads every #include of the files given and names those that the floors forbid:
#   file:line: what it includes, and why not
# Which floor may include which stands in table.awk; a public header belongs to the floor that
# implements it, and one of plain data (mesh, operation, shape) to the lowest. Libraries have homes.
# Anything not named here is refused, so that a new library has to find its home first. Exit code 1
# when something was refused.
BEGIN {
    split("status tensor device list options sized sample mesh operation shape", names, " ")
    for (i in names)
        public_floor[names[i]] = "core"
    public_floor["kernels"] = "kernels"
    public_floor["parameter"] = "parallel"
    public_floor["layer"] = public_floor["describe"] = public_floor["model"] = public_floor["check"] = "layers"
    public_floor["weft"] = public_floor["application"] = public_floor["family"] = "launcher"
    public_floor["family_rows"] = "launcher"

    # A library's headers, and the paths that may include them.
    home["^mpi\\.h$"] = "^comm/mpi/|^bench/(in_node|priority)"
    home["^emmintrin\\.h$"] = "^comm/mpi/copy\\."
    home["^nccl\\.h$"] = "^comm/nccl/"
    home["^hdf5\\.h$"] = "^parallel/checkpoint"
    home["^linux/(capability|filter|seccomp)\\.h$"] = "^tests/"
    home["^liburing\\.h$"] = "^parallel/spill"
    home["^hwloc\\.h$"] = "^parallel/topology"
    home["^(oneapi/|omp\\.h$|immintrin\\.h$)"] = "^kernels/"
    home["^cu(blas|blasLt|dnn)[A-Za-z_0-9]*\\.h$"] = "^kernels/cuda/"
    home["^cuda[A-Za-z_0-9]*\\.h$"] = "^core/device/cuda/|^kernels/cuda/|^comm/nccl/"
    home["^Random123/"] = "^core/"
    home["^cjson/"] = "^core/|^launcher/"
    home["^xxhash\\.h$"] = "^parallel/|^launcher/|^kernels/cuda/"
    home["^(new|tuple|type_traits|utility)$|^(elf|link|ucontext|library_types)\\.h$|^sanitizer/"] = \
        "^tests/"
    home["^(pcre2|utf8proc)\\.h$"] = "^launcher/"
    home["^(zlib|zstd)\\.h$"] = "^launcher/|^tests/"
    split("arpa/inet assert complex ctype dirent dlfcn errno fcntl fenv float fnmatch ftw getopt " \
          "ifaddrs net/if " \
          "glob inttypes libgen limits locale math netdb netinet/in poll pthread pty pwd regex sched " \
          "search semaphore setjmp signal spawn stdalign stdarg stdatomic stdbool stddef stdint stdio stdio_ext " \
          "stdlib stdnoreturn string strings tgmath threads time unistd wchar wctype", names, " ")
    for (i in names)
        libc[names[i] ".h"] = 1
}

function refuse(why) {
    printf "%s:%d: includes %s: %s\n", file, FNR, wanted, why
    num_refused++
}

function check_public(name) {
    if (!(name in public_floor))
        refuse("no public header of that name is known to tests/style/floors.awk")
    else if (file ~ /^include\//) {
        if (!(own in public_floor))
            refuse("this public header's floor is not known to tests/style/floors.awk")
        else if (!may_include(public_floor[own], public_floor[name]))
            refuse(public_floor[own] " may not include " public_floor[name])
    } else if (floor != "examples" && !may_include(floor, public_floor[name]))
        refuse(floor " may not include " public_floor[name])
}

function check_project(path,    other) {
    other = path
    if (sub(/\/.*/, "", other) == 0) {
        if (floor == "tests" || floor == "bench") # a neighbour
            return
        refuse("a quoted path starts at the root: folder/file.h")
    } else if (floor == "examples")
        refuse("examples see <weft/...> alone")
    else if (!may_include(floor, other))
        refuse(floor " may not include " other)
    else if (floor == other && !may_include(room_of(file), room_of(path)))
        refuse(room_of(file) " may not include " room_of(path))
    else if (floor != other && floor != "tests" && path ~ /^comm\/(mpi|nccl|self)\//)
        refuse("a backend's own header; comm/comm.h is the door")
    else if (floor != other && floor != "tests" && path ~ /^kernels\/(cpu|cuda)\//)
        refuse("a backend's own header; kernels/kernels.h is the door")
    else if (floor != "tests" && is_inside(path) && index(file, folder_of(path)) != 1)
        refuse("a room's own header; its doors: " doors_of(path))
    edge[file, path] = 1
    left[file] = left[path] = 1
}

function folder_of(path) {
    sub(/[^\/]*$/, "", path)
    return path
}

function check_library(path,    pattern) {
    if (path in libc || path ~ /^sys\/[a-z_]+\.h$/)
        return
    for (pattern in home)
        if (path ~ pattern) {
            if (floor != "tests" && file !~ home[pattern])
                refuse("its home is " home[pattern])
            return
        }
    if (floor != "tests" || path !~ /^cmocka\.h$/)
        refuse("a library without a home in tests/style/floors.awk")
}

FNR == 1 {
    file = FILENAME
    sub(/^\.\//, "", file)
    own = floor = file
    sub(/\/.*/, "", floor)
    sub(/.*\//, "", own)
    sub(/\.h$/, "", own)
    num_files++
    if (floor != "include" && !(floor in floors)) {
        wanted = "something"
        refuse("a source outside the known folders")
    } else if (floor != "include" && !(room_of(file) in floors)) {
        wanted = "something"
        refuse("a source outside the known rooms")
    }
}

/^[ \t]*#[ \t]*include/ {
    num_includes++
    wanted = $0
    sub(/^[ \t]*#[ \t]*include[ \t]*/, "", wanted)
    sub(/[ \t]*(\/\*.*|\/\/.*)?$/, "", wanted)
    path = substr(wanted, 2, length(wanted) - 2)
    if (wanted !~ /^(<.*>|".*")$/)
        refuse("a computed include cannot be judged")
    else if (wanted ~ /^<weft\/.*\.h>$/ || (floor == "include" && wanted ~ /^"/)) {
        sub(/^weft\//, "", path)
        sub(/\.h$/, "", path)
        check_public(path)
    } else if (wanted ~ /^"/)
        check_project(path)
    else
        check_library(path)
}

END {
    num_refused += find_circle(edge, left, "a header names what it needs of the other itself")
    printf "%d files, %d includes, %d refused\n", num_files, num_includes, num_refused
    exit num_refused > 0
}
