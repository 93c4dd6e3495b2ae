#!/bin/sh
# Rustdoc with its output in JSON, which only its unstable options know.
RUSTC_BOOTSTRAP=1 exec rustdoc "$@"
