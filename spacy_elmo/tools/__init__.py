"""What users run on a pipeline. Nothing in the component, the layers or the network imports it."""
