"""Commands that list what there is: networks and models, recipes, data sets."""
