// What the official client for Node.js sees of a server: one line of JSON for each observation.
//
// node conformance.cjs ENDPOINT RUN [STEP ...]
//
// Against the gateway and against RocketMQ it does the same, so that what it prints can be compared. Each step has topics
// and groups of its own, named by step and RUN; steps run side by side. With TLS=1 in the environment it uses TLS; access
// keys are ACCESS_KEY and SECRET_KEY there. Steps and their names are those of the program for Python.
//
// Left out: step 14, calls that no client makes; step 15, because this client does not compress.

"use strict";

const { inspect } = require("node:util");

const { chosen, note } = require("./clients.cjs");

const steps = { ...require("./sending.cjs"), ...require("./consuming.cjs") };

async function run(name) {
  try {
    await steps[name]();
  } catch (error) {
    note(Number(name), "failed", { trace: inspect(error) });
    return false;
  }
  note(Number(name), "done");
  return true;
}

Promise.all((chosen.length ? chosen : Object.keys(steps)).map(run)).then((all) => process.exit(all.every(Boolean) ? 0 : 1));
