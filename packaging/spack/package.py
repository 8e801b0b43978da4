# Spack's recipe, of a checkout: `spack repo create weft-repo`, this file as packages/weft/package.py in it, `spack
# repo add`, then in the checkout `spack install weft` as an environment's `spack develop --path . weft@main` has it.
from spack_repo.builtin.build_systems.cmake import CMakePackage, generator
from spack_repo.builtin.build_systems.cuda import CudaPackage

from spack.package import *


class Weft(CMakePackage, CudaPackage):
    """Trains dense and mixture-of-experts language models across a mesh of devices: tensor, sequence,
    context, expert, pipeline and data parallel, from one binary and one JSON file."""

    homepage = "https://weft.example.org"
    git = "https://weft.example.org/weft.git"

    version("main", branch="main")

    variant("uring", default=True, description="Write spill files by io_uring")

    depends_on("c", type="build")
    depends_on("cxx", type="build", when="+cuda")
    depends_on("cmake@3.25:", type="build")
    depends_on("pkgconfig", type="build")
    depends_on("random123", type="build")

    depends_on("openmpi@4.1")  # `weft train` and its job scripts speak to this mpirun
    depends_on("hdf5@1.10:+mpi")
    depends_on("onednn@2.7 cpu_runtime=omp")  # version 3 has another interface
    depends_on("cjson")
    depends_on("hwloc@2:")
    depends_on("pcre2")
    depends_on("utf8proc")
    depends_on("xxhash")
    depends_on("zlib-api")
    depends_on("zstd")
    depends_on("liburing", when="+uring")
    depends_on("nccl", when="+cuda")

    generator("ninja")

    def cmake_args(self):
        args = [
            self.define("BUILD_TESTING", False),
            self.define("WEFT_WERROR", False),
            self.define("WEFT_CUDA", "on" if self.spec.satisfies("+cuda") else "off"),
        ]
        machines = [a for a in self.spec.variants["cuda_arch"].value if a != "none"] if "+cuda" in self.spec else []
        if machines:
            args.append(self.define("WEFT_CUDA_MACHINES", ",".join(f"sm_{a}" for a in machines)))
        return args

    def setup_run_environment(self, env):
        env.set("WEFT_ROOT", self.prefix)

    def test_train(self):
        """a small model trains on four ranks, and its checkpoint is whole"""
        weft = which(self.prefix.bin.weft, required=True)
        config = self.prefix.share.doc.weft.examples.join("demo.json")
        weft("train", config, "--out", "run", "--set", "data.mock_data=true",
             "--set", "model.vocab_size=512", "--set", "train.train_iters=4", "--set", "train.lr_warmup_iters=1")
        weft("inspect", "run")
