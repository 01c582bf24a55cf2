"""Writes the 1797 handwritten digits of scikit-learn (8 x 8 pixels) as 64 x 64 PNGs, in a folder for each class, and
`questions.jsonl` with three questions about each.

usage: pip install scikit-learn pillow; python3 cli/digits.py FOLDER
"""
import json
import os
import sys

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

digits, lines = load_digits(), []
for i, (pixels, label) in enumerate(zip(digits.images, digits.target)):
    folder = os.path.join(sys.argv[1], str(label))
    os.makedirs(folder, exist_ok=True)
    image = Image.fromarray(np.round(pixels * 255 / 16).astype("u1"))
    image.resize((64, 64), Image.Resampling.BILINEAR).save(os.path.join(folder, f"{i:04}.png"))
    answers = {"which digit": str(label), "is it even": label % 2 == 0, "is it larger than five": label > 5}
    for question, answer in answers.items():
        answer = answer if isinstance(answer, str) else "yes" if answer else "no"
        lines.append(json.dumps({"image": f"{label}/{i:04}.png", "question": question, "answer": answer}))
with open(os.path.join(sys.argv[1], "questions.jsonl"), "w") as file:
    file.write("\n".join(lines) + "\n")
