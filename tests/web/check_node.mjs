// node check_node.mjs FOLDER: the checks of check.mjs in Node; prints what came out.
import { pathToFileURL } from "node:url";
import { check } from "./check.mjs";
const folder = pathToFileURL(`${process.argv[2]}/`);
console.log(JSON.stringify(await check(folder, "lib/xnorpp.js", process.argv[3])));
