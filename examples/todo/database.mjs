// A PostgreSQL server of the example's own, which ends with it and keeps nothing.
import { execFileSync, spawn, spawnSync } from "node:child_process"
import { chownSync, existsSync, readdirSync } from "node:fs"
import { createServer } from "node:net"
import { atExit, temporaryFolder } from "../tidings.mjs"

/** Folder of `initdb` and `postgres`: of the newest version that is installed. */
function programs() {
  const debian = "/usr/lib/postgresql"
  const [newest] = existsSync(debian) ? readdirSync(debian).sort((a, b) => Number(b) - Number(a)) : []
  if (newest) return `${debian}/${newest}/bin`
  try {
    return execFileSync("pg_config", ["--bindir"], { encoding: "utf8" }).trim()
  } catch {
    throw new Error("PostgreSQL is not installed; scripts/install-test-tools installs it, or DATABASE_URL names a database")
  }
}

/** PostgreSQL refuses to run as root. */
function unprivileged() {
  if (process.getuid?.() !== 0) return {}
  const id = flag => Number(execFileSync("id", [flag, "postgres"], { encoding: "utf8" }))
  return { uid: id("-u"), gid: id("-g") }
}

async function freePort() {
  const server = createServer()
  await new Promise(resolve => server.listen(0, "127.0.0.1", resolve))
  const { port } = server.address()
  await new Promise(resolve => server.close(resolve))
  return port
}

/** Starts it; resolves with the URL of an empty database. */
export async function startPostgres() {
  const bin = programs()
  const user = unprivileged()
  const folder = temporaryFolder("postgres")
  if (user.uid !== undefined) chownSync(folder, user.uid, user.gid)
  const data = `${folder}/data`
  const options = { cwd: "/", ...user }
  execFileSync(`${bin}/initdb`, ["--auth=trust", "--username=postgres", "--no-sync", "--encoding=UTF8", "--locale=C.UTF-8", "-D", data], { ...options, stdio: ["ignore", "ignore", "inherit"] })
  const port = await freePort()
  const settings = { listen_addresses: "127.0.0.1", port, unix_socket_directories: "", fsync: "off", log_min_messages: "fatal" }
  const server = spawn(`${bin}/postgres`, ["-D", data, ...Object.entries(settings).flatMap(([name, value]) => ["-c", `${name}=${value}`])], { ...options, stdio: ["ignore", "ignore", "inherit"] })
  // Before the folder is removed, and at once: nothing is kept.
  process.prependOnceListener("exit", () => spawnSync(`${bin}/pg_ctl`, ["stop", "-D", data, "-m", "immediate", "-w"], { ...options, stdio: "ignore" }))
  server.once("exit", code => {
    if (code) throw new Error(`PostgreSQL ended with ${code}`)
  })
  while (spawnSync(`${bin}/pg_isready`, ["-h", "127.0.0.1", "-p", String(port), "-q"]).status !== 0) await new Promise(resolve => setTimeout(resolve, 50))
  return `postgres://postgres@127.0.0.1:${port}/postgres`
}
