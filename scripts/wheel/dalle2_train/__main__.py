# SPDX-License-Identifier: MIT
"""python -m dalle2_train"""
from dalle2_train import main

main()
