// Saves the text that the server has made as a file, once, and reports that it has.

let saved = "";

export default function ({ data, setTriggerValue }) {
  if (data.id !== saved) {
    saved = data.id;
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([data.text], { type: data.mime }));
    link.download = data.name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 60000);
  }
  setTriggerValue("saved", data.id);
  return undefined;
}
