"""The examples of the Agent Spaces specification, word for word."""

from __future__ import annotations

import json
from typing import Any


def example(text: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(text)
    return found


THREE_OPERATIONS = example(
    """{
  "protocolVersion": "1.0",
  "operations": [
    { "type": "message", "content": "Starting..." },
    { "type": "createFile", "path": "app.ts", "content": "..." },
    { "type": "shell", "command": "bun run app.ts" }
  ]
}"""
)

MESSAGE = example('{"type": "message", "id": "msg-1", "content": "Processing data..."}')
CREATE_FILE = example(
    """{
  "type": "createFile",
  "id": "file-1",
  "path": "src/utils.ts",
  "content": "export const helper = () => {};",
  "encoding": "utf-8",
  "overwrite": false
}"""
)
READ_FILE = example('{"type": "readFile", "id": "read-1", "path": "config.json", "encoding": "utf-8"}')
EDIT_FILE = example(
    """{
  "type": "editFile",
  "id": "edit-1",
  "path": "src/app.ts",
  "edits": [
    {
      "oldContent": "const x = 1;",
      "newContent": "const x = 42;"
    }
  ]
}"""
)
DELETE_FILE = example('{"type": "deleteFile", "id": "del-1", "path": "temp.txt"}')
SHELL = example(
    """{
  "type": "shell",
  "id": "shell-1",
  "command": "bun run test.ts",
  "cwd": "src",
  "timeout": 30000,
  "env": {
    "DEBUG": "true"
  }
}"""
)
OPERATIONS = (MESSAGE, CREATE_FILE, READ_FILE, EDIT_FILE, DELETE_FILE, SHELL)

EVENTS_MESSAGE = example(
    '{"protocolVersion": "1.0", "runId": "run_abc123", "status": "completed", "events": []}'  # `[...]` in the text
)
MESSAGE_EVENT = example(
    '{"type": "message", "timestamp": "2024-01-15T10:30:00Z", "operationId": "msg-1", "success": true}'
)
CREATE_FILE_EVENT = example(
    """{
  "type": "createFile",
  "timestamp": "2024-01-15T10:30:00Z",
  "operationId": "file-1",
  "path": "src/utils.ts",
  "success": true,
  "bytesWritten": 31
}"""
)
CREATE_FILE_FAILED = example(
    """{
  "type": "createFile",
  "path": "src/utils.ts",
  "success": false,
  "error": "File already exists"
}"""
)
READ_FILE_EVENT = example(
    r"""{
  "type": "readFile",
  "timestamp": "2024-01-15T10:30:00Z",
  "operationId": "read-1",
  "path": "config.json",
  "success": true,
  "content": "{\"key\": \"value\"}",
  "encoding": "utf-8",
  "size": 16
}"""
)
EDIT_FILE_EVENT = example(
    """{
  "type": "editFile",
  "timestamp": "2024-01-15T10:30:00Z",
  "operationId": "edit-1",
  "path": "src/app.ts",
  "success": true,
  "editsApplied": 1
}"""
)
DELETE_FILE_EVENT = example(
    """{
  "type": "deleteFile",
  "timestamp": "2024-01-15T10:30:00Z",
  "operationId": "del-1",
  "path": "temp.txt",
  "success": true
}"""
)
SHELL_EVENT = example(
    r"""{
  "type": "shell",
  "timestamp": "2024-01-15T10:30:00Z",
  "operationId": "shell-1",
  "command": "bun run test.ts",
  "success": true,
  "exitCode": 0,
  "stdout": "All tests passed!\n",
  "stderr": "",
  "durationMs": 1234
}"""
)
SHELL_TIMED_OUT = example(
    """{
  "type": "shell",
  "command": "sleep 1000",
  "success": false,
  "timedOut": true,
  "exitCode": 124,
  "durationMs": 30000
}"""
)
APPROVAL_REQUIRED = example(
    """{
  "type": "approvalRequired",
  "timestamp": "2024-01-15T10:30:00Z",
  "operationId": "shell-1",
  "operationType": "shell",
  "reason": "Destructive command requires approval",
  "details": {
    "command": "rm -rf data/",
    "policy": "shell.approvalRequired"
  }
}"""
)
POLICY_DENIED = example(
    """{
  "type": "policyDenied",
  "timestamp": "2024-01-15T10:30:00Z",
  "operationType": "shell",
  "reason": "Command 'sudo' is blocked",
  "suggestion": "Remove sudo from command"
}"""
)
ERROR = example(
    """{
  "type": "error",
  "timestamp": "2024-01-15T10:30:00Z",
  "category": "execution",
  "message": "Docker container not available",
  "details": {}
}"""
)
EVENTS = (
    MESSAGE_EVENT,
    CREATE_FILE_EVENT,
    CREATE_FILE_FAILED,
    READ_FILE_EVENT,
    EDIT_FILE_EVENT,
    DELETE_FILE_EVENT,
    SHELL_EVENT,
    SHELL_TIMED_OUT,
    APPROVAL_REQUIRED,
    POLICY_DENIED,
    ERROR,
)
