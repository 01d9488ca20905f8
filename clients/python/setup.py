"""Builds the package: generates the stubs from proto/ and copies the retry policy from clients/service_config.json.

To build a copy of this folder elsewhere, set SLUICE_SOURCE to Sluice's source tree."""
import os
import pathlib
import shutil
import sys

from setuptools import setup
from setuptools.command.build_py import build_py

SOURCE = pathlib.Path(os.environ.get("SLUICE_SOURCE", pathlib.Path(__file__).resolve().parents[2]))


class BuildWithStubs(build_py):
    def run(self):
        super().run()
        from grpc_tools import protoc
        out = pathlib.Path(self.build_lib)
        names = ["sluice/v1/common.proto", "sluice/v1/inference.proto"]
        arguments = ["protoc", f"-I{SOURCE / 'proto'}", f"--python_out={out}", f"--pyi_out={out}", f"--grpc_python_out={out}"]
        if protoc.main([*arguments, *names]) != 0:
            sys.exit("protoc failed")
        (out / "sluice/v1/__init__.py").touch()
        shutil.copy(SOURCE / "clients/service_config.json", out / "sluice/service_config.json")


setup(cmdclass={"build_py": BuildWithStubs})
