"""The package installs from its folder, with nothing else within reach."""

import ast
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1]
ROOT = FOLDER.parents[1]


class Install(unittest.TestCase):
    def test_pip_installs_the_folder_without_an_index(self):
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([sys.executable, "-m", "venv", folder], check=True)
            python = Path(folder) / "bin/python"
            pip = [python, "-m", "pip", "install", "--quiet", "--no-index", "--disable-pip-version-check"]
            subprocess.run([*pip, FOLDER], check=True)
            code = "import weirgate; print(weirgate.__file__)"
            found = subprocess.run([python, "-c", code], check=True, capture_output=True, text=True, cwd=folder).stdout
            installed = Path(found.strip()).parent
            self.assertTrue(str(installed).startswith(str(Path(folder).resolve())), found)
            self.assertTrue((installed / "py.typed").is_file())
            subprocess.run([*pip, "--force-reinstall", "--editable", FOLDER], check=True)
            found = subprocess.run([python, "-c", code], check=True, capture_output=True, text=True, cwd=folder).stdout
            self.assertEqual(Path(found.strip()).parent, FOLDER / "src/weirgate")

    def test_the_version_is_that_of_the_crate(self):
        def version(path):
            text = (ROOT / path).read_text(encoding="utf-8")
            return re.search(r'^\s*(?:"version"|version|__version__)\s*[=:] "(.*?)"', text, re.M).group(1)

        self.assertEqual(version("clients/python/pyproject.toml"), version("Cargo.toml"))
        self.assertEqual(version("clients/typescript/package.json"), version("Cargo.toml"))
        self.assertEqual(version("clients/python/src/weirgate/__init__.py"), version("Cargo.toml"))

    def test_the_source_is_of_the_oldest_python(self):
        for path in (FOLDER / "src").rglob("*.py"):
            ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 9))


if __name__ == "__main__":
    unittest.main()
