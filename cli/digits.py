"""Writes the 1797 handwritten digits of scikit-learn (8 x 8 pixels) as 64 x 64 PNGs, in a folder for each class.

usage: pip install scikit-learn pillow; python3 cli/digits.py FOLDER
"""
import os
import sys

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

digits = load_digits()
for i, (pixels, label) in enumerate(zip(digits.images, digits.target)):
    folder = os.path.join(sys.argv[1], str(label))
    os.makedirs(folder, exist_ok=True)
    image = Image.fromarray(np.round(pixels * 255 / 16).astype("u1"))
    image.resize((64, 64), Image.Resampling.BILINEAR).save(os.path.join(folder, f"{i:04}.png"))
