// Builds the package into `dist`: `npm run build`. With the name of a folder: its code only, there.
import { spawnSync } from "node:child_process"
import { readdirSync, rmSync } from "node:fs"
import { fileURLToPath } from "node:url"
import { build } from "esbuild"

const root = fileURLToPath(new URL("..", import.meta.url))

/** Writes the code. What begins with `_` is for other files of the package and not for users, so it gets a short name. */
export async function buildCode(outdir) {
  const sources = readdirSync(`${root}src`, { recursive: true }).filter(name => name.endsWith(".ts"))
  const options = { format: "esm", target: "es2022", outdir, outbase: `${root}src`, mangleProps: /^_[a-z]/, logLevel: "warning" }
  // Together the files tell which names there are, so that a name becomes the same one in all files.
  const contents = sources.map(name => `import "./${name}"`).join("\n")
  const together = { stdin: { contents, resolveDir: `${root}src` }, bundle: true, packages: "external", ignoreAnnotations: true, treeShaking: false }
  const { mangleCache } = await build({ ...options, ...together, write: false, mangleCache: {} })
  rmSync(outdir, { recursive: true, force: true })
  await build({ ...options, entryPoints: sources.map(name => `${root}src/${name}`), mangleCache })
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const [, , outdir] = process.argv
  await buildCode(outdir ?? `${root}dist`)
  if (outdir === undefined) {
    const { status } = spawnSync(process.execPath, [`${root}node_modules/typescript/bin/tsc`, "-p", `${root}tsconfig.json`], { stdio: "inherit" })
    process.exitCode = status ?? 1
  }
}
