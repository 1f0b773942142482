import assert from "node:assert/strict"
import { execFile } from "node:child_process"
import { readFileSync } from "node:fs"
import { test } from "node:test"
import { fileURLToPath } from "node:url"
import { promisify } from "node:util"
import { gzipSync } from "node:zlib"
import { build } from "esbuild"

const root = fileURLToPath(new URL("../../", import.meta.url))
const run = (...args: string[]) => promisify(execFile)(process.execPath, args, { cwd: root })

test("the package builds, and each of its entry points is there with its types", async () => {
  await run("scripts/build.mjs")
  const { exports, dependencies } = JSON.parse(readFileSync(`${root}package.json`, "utf8"))
  assert.equal(dependencies, undefined)
  const names = Object.keys(exports)
  assert.deepEqual(names, [".", "./topics", "./rooms", "./entities", "./sessions", "./hooks", "./react"])
  for (const name of names) {
    readFileSync(`${root}${exports[name].types}`)
    // By the package's own name, as users import it.
    const { stdout } = await run("--input-type=module", "-e", `console.log(Object.keys(await import("${name.replace(".", "tidings-client")}")).length)`)
    assert.ok(Number(stdout) > 0, name)
  }
  const { stdout } = await run("--input-type=module", "-e", 'import * as all from "tidings-client"; console.log(Object.keys(all).join(" "))')
  for (const expected of ["Topics", "Rooms", "Entities", "Sessions", "Hooks", "verify"]) assert.match(stdout, new RegExp(`\\b${expected}\\b`))
})

test("a program compiles with the types of the built package", async () => {
  await run("node_modules/typescript/bin/tsc", "-p", "tests/consumer")
})

/** Largest size of what is imported from the package, minified and compressed, in bytes. */
const BUDGETS: [what: string, source: string, bytes: number][] = [
  ["topics", 'export { Topics } from "tidings-client/topics"', 8 * 1024],
  ["everything", 'export * from "tidings-client"; export * from "tidings-client/react"', 20 * 1024],
]

for (const [what, source, most] of BUDGETS) {
  test(`a bundle of ${what} has at most ${most} bytes`, async t => {
    const { outputFiles } = await build({
      stdin: { contents: source, resolveDir: root },
      bundle: true,
      minify: true,
      write: false,
      format: "esm",
      target: "es2022",
      external: ["react", "@durable-streams/client"],
    })
    const { length } = gzipSync(outputFiles[0]!.contents, { level: 9 })
    t.diagnostic(`${what}: ${length} bytes`)
    assert.ok(length <= most, `${what} has ${length} bytes`)
  })
}

test("the types are as promised", async () => {
  await run("node_modules/typescript/bin/tsc", "-p", "tsconfig.tests.json")
})
